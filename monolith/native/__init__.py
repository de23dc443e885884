"""The compiled op library: its loader and the Python face of each op."""
