"""What is seen of a run, on any engine: what it is observed for, names, and watched tensors on their way out."""
