"""Model shapes, checkpoints, and the decoder that computes them."""
