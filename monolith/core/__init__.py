"""What everything else stands on: params, paths, files, flags, environment, metrics, signals."""
