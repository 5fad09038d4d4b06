"""Sessions and hooks that watch the runs they surround."""
