"""Not public. Files that the program wrote: how they are read, the charts drawn of them."""
