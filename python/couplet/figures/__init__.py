"""Not public. Figures to log: of weights, of scores, of responses to tokens."""
