"""Not public. The loss as operations on tensors: erc_loss and couplet::erc, its paths on each device, the noise."""
