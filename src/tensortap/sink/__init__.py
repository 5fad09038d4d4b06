"""Where records go: files and memory behind one protocol, with budgets, retention and exact counts."""
