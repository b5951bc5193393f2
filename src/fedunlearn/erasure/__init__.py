"""An erasure request, from the desk to the certificate."""
