"""Training over parameter servers, ours against one process and TensorFlow's own strategy."""
