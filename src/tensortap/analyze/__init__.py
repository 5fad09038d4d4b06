"""Pure functions from what was dumped to what it means; records in, findings out.

Not a stable interface yet: see docs/api.md.
"""
