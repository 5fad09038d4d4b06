"""The seam: what an engine is to all above it, and what both hand each other. `engines/` implements it."""
