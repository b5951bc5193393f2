"""Four sites learn to recognise clothes."""
