"""``python -m fedunlearn.cli``."""

from . import main

main()
