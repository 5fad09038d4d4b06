"""Tensors of every kind and layout, on every path through the engine."""
