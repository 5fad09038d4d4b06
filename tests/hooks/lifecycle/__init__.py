"""The same hooks driven through our monitored sessions and through TensorFlow's, call by call."""
