"""A minimal app that asks every node for its name."""
