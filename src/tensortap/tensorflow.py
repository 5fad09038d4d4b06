"""The TensorFlow engine, as users import it: `tensortap.tensorflow.Session`."""

from tensortap.extras import require

require("tensorflow", "tensortap.tensorflow")

from tensortap.engines.tensorflow import Session  # noqa: E402

__all__ = ["Session"]
