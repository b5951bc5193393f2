"""Runs an experiment file on Flower."""
