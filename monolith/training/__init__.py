"""Tasks, training loops, hooks, runners."""
