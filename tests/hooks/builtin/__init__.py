"""The built-in hooks, each on every kind of engine."""
