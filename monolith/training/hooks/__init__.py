"""Session hooks that start, pace and stop the workers of a job."""
