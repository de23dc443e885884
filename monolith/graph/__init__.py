"""What every graph is built with: modes, devices, task context, metadata, specs."""
