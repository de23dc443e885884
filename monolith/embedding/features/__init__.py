"""Features of a model: slots, slices, combiners, and the way of gradients back to rows."""
