"""Taps inside programs that XLA compiled: a small C library with foreign functions, and what replaces it elsewhere."""
