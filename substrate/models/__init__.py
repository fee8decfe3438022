"""Model shapes, checkpoints, and the decoder that computes the forward pass."""
