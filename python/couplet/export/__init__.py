"""What the program writes as JSON, in the forms that other programs read: `python -m couplet.export`."""
