"""A network's graph: traced without a trace left in the model, checked for writes, and evaluated by rules."""
