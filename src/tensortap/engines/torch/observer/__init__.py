"""The native interceptor: its C++ source, and what builds and loads it."""
