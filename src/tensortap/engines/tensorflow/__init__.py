"""The TensorFlow engine."""
