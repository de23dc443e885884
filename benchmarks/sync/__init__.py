"""Synchronous training over ranks, ours against TensorFlow's `MultiWorkerMirroredStrategy`."""
