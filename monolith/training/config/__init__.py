"""The settings of a job."""
