"""Seeing the tensors of the graphs that TensorFlow executes.

`interface.py` says what an observer is; `choice.py` gives the one that works here: `native.py`, with an op of ours that
is compiled on this machine, or `portable.py`, with TensorFlow's own debug ops.
"""
