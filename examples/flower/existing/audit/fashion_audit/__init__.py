"""Compares models on the data of four sites."""
