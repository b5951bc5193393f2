"""Trains a model at several sites and forgets one of them."""
