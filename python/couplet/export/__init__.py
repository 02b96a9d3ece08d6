"""Converts JSON of the program into forms that other programs read: `python -m couplet.export`."""
