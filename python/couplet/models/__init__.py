"""Not public. A model's routers and gates: their names, places and present values."""
