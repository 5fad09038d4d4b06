"""A training step to try the engine on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from tensortap.debug.dumping import DumpingDebugWrapperSession
from tensortap.engines.tensorflow.session import Session
from tensortap.watch.options import WatchOptions

__all__ = ["train_once"]

_v1 = tf.compat.v1


def train_once(root: str | Path) -> None:
    """Train a small model for one step and record the health of everything in a new session directory."""
    with tf.Graph().as_default() as graph:
        x = _v1.placeholder(tf.float32, [None, 4], name="x")
        weight = _v1.get_variable("weight", initializer=np.full((4, 2), 0.5, np.float32))
        loss = tf.reduce_mean(tf.square(tf.nn.relu(tf.matmul(x, weight))), name="loss")
        train = _v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    session = Session(graph=graph, step={"loss": loss, "train": train})
    health = WatchOptions(["DebugNumericSummary"])
    with DumpingDebugWrapperSession(session, str(root), watch_fn=health) as wrapped:
        wrapped.run(None, {"x": np.ones((3, 4))})
