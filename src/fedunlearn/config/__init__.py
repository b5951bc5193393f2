"""Strict settings, options of methods, and what is wrong with a value."""
