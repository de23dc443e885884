"""Dense optimizers and gradient clipping."""
