"""Hooks that most training runs want, one file per family."""
