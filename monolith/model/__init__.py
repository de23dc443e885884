"""What a user's model is made of: tasks, lookups, heads, losses, outputs."""
