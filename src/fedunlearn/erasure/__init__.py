"""Erasure requests, from the desk to the certificate."""
