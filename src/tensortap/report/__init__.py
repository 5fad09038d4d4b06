"""From findings to what people and programs read: text for terminals, JSON."""
