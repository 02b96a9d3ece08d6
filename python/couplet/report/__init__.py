"""Not public. Reads the files that the program wrote, and draws their charts."""
