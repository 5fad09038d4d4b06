"""The TensorFlow engine: graphs that a session executes, seen where they are executed.

Session       a `tf.compat.v1.Session`, with hooks, watches and everything else that goes around a session
"""

from tensortap.engines.tensorflow.session import Session

__all__ = ["Session"]
