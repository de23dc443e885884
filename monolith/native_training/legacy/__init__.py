"""What only the historical paths need."""
