"""What to watch: options, debug-op texts, patterns, and where the records go."""
