"""The `monolith` command."""
