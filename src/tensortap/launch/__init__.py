"""Watching a program that knows nothing of it: started as `python` would start it, followed by its framework."""
