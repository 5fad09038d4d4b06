"""Seeing the operations of a run: what is wanted of each call, and what its taps have seen."""
