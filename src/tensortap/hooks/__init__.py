"""Hooks and the monitored sessions that call them, for any engine."""
