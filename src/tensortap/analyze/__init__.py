"""Pure functions from what was dumped to what it means; records in, findings out."""
