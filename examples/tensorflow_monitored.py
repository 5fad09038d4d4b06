"""A training script of TensorFlow 1 with hooks of tensortap: only the import lines differ.

It was written for `from tensorflow.compat.v1.train import …` and TensorFlow's own `DumpingDebugHook`. The session, its
checkpoints and its recovery are still TensorFlow's. Run it with `python examples/tensorflow_monitored.py [DIRECTORY]`,
and then look at what was dumped with `tensortap ls DIRECTORY/dumps`.
"""

from __future__ import annotations

import logging
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from tensortap import DumpingDebugHook, LoggingTensorHook, NanTensorHook, ProfilerHook, StopAtStepHook

BATCH, FEATURES, CLASSES = 32, 8, 3


def batches(seed):
    """Points around one of three centres."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(CLASSES, FEATURES)) * 2
    while True:
        labels = random.integers(0, CLASSES, BATCH)
        yield centres[labels] + random.normal(size=(BATCH, FEATURES)), labels


def model(features):
    with tf.variable_scope("hidden"):
        weights = tf.get_variable(
            "weights", [FEATURES, 16], initializer=tf.glorot_uniform_initializer(seed=1)
        )
        biases = tf.get_variable("biases", [16], initializer=tf.zeros_initializer())
        hidden = tf.nn.relu(tf.matmul(features, weights) + biases)
    with tf.variable_scope("softmax_linear"):
        weights = tf.get_variable("weights", [16, CLASSES], initializer=tf.glorot_uniform_initializer(seed=2))
        biases = tf.get_variable("biases", [CLASSES], initializer=tf.zeros_initializer())
        return tf.matmul(hidden, weights) + biases


def main(directory):
    with tf.Graph().as_default():
        features = tf.placeholder(tf.float32, [None, FEATURES], name="features")
        labels = tf.placeholder(tf.int32, [None], name="labels")
        logits = model(features)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss"
        )
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)

        hooks = [
            StopAtStepHook(last_step=40),
            NanTensorHook(loss),
            LoggingTensorHook({"step": step, "loss": loss}, every_n_iter=10),
            ProfilerHook(save_steps=20, output_dir=directory),
            DumpingDebugHook(f"{directory}/dumps"),
        ]
        losses = []
        data = batches(seed=0)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=directory, hooks=hooks, save_checkpoint_steps=20
        ) as session:
            while not session.should_stop():
                x, y = next(data)
                value, _ = session.run([loss, train_op], feed_dict={features: x, labels: y})
                losses.append(value)
        return losses


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    root = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tensortap-")
    trained = main(root)
    print(f"loss {trained[0]:.3f} -> {trained[-1]:.3f}; checkpoints, timelines and dumps in {root}")
