"""Hooks, monitored sessions and what belongs to them."""
