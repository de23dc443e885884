"""Export, prediction, parameter sync."""
