"""Trains a model at several sites and answers their signed erasure requests."""
