"""Programs for TensorFlow's graph mode in which nothing is wrong, although some hold infinities: no alarm is right."""

from __future__ import annotations

import numpy as np

from tests.tensorflow_engine.plants import INFINITY, Program, dense, ones, placeholder, trained, weight

__all__ = ["HEALTHY"]


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def adam(tf, loss, feeds=None):
    train = tf.compat.v1.train.AdamOptimizer(0.01).minimize(loss)
    return Program([loss, train], feeds or ({"x": random(4, 3)},) * 3)


def classifier(tf):
    hidden = tf.nn.relu(dense(tf, placeholder(tf, None, 3), 8))
    logits = dense(tf, hidden, 4, name="head")
    labels = tf.constant([0, 1, 2, 3])
    return adam(
        tf, tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), name="loss")
    )


def masked_attention(tf):
    x = placeholder(tf, None, 3)
    scores = tf.matmul(dense(tf, x, 4, "query"), dense(tf, x, 4, "key"), transpose_b=True)
    causal = tf.linalg.band_part(tf.ones([4, 4]), -1, 0) > 0
    shares = tf.nn.softmax(tf.where(causal, scores, -INFINITY))
    return adam(tf, tf.reduce_mean(tf.square(tf.matmul(shares, x)), name="loss"))


def masked_by_adding(tf):
    x = placeholder(tf, None, 3)
    mask = np.where(np.tri(4), 0.0, -INFINITY).astype(np.float32)
    shares = tf.nn.softmax(tf.matmul(x, dense(tf, x, 3), transpose_b=True) + tf.constant(mask))
    return adam(tf, tf.reduce_mean(tf.matmul(shares, x), name="loss"))


def convolutions(tf):
    images = tf.reshape(placeholder(tf, 2, 64), [2, 8, 8, 1])
    kernel = weight(tf, "kernel", np.full([3, 3, 1, 2], 0.1, np.float32))
    hidden = tf.nn.conv2d(images, kernel, 1, "SAME")
    hidden, _, _ = tf.compat.v1.nn.fused_batch_norm(hidden, [1.0, 1.0], [0.0, 0.0], is_training=True)
    pooled = tf.nn.max_pool2d(tf.nn.relu(hidden), 2, 2, "SAME")
    return adam(tf, tf.reduce_mean(tf.square(pooled), name="loss"), ({"x": random(2, 64)},) * 2)


def recurrence(tf):
    x = placeholder(tf, 4, 3)
    kernel = weight(tf, "recurrent", np.eye(3, dtype=np.float32) * 0.5)
    steps = tf.while_loop(
        lambda i, state: i < 5, lambda i, state: (i + 1, tf.tanh(tf.matmul(state, kernel) + x)), [0, x]
    )
    return adam(tf, tf.reduce_sum(tf.square(steps[1]), name="loss"))


def least_of_nothing_yet(tf):
    """A search that begins at infinity, as searches do."""
    hidden = dense(tf, placeholder(tf, 4, 3), 2)
    search = tf.while_loop(
        lambda i, least: i < 4,
        lambda i, least: (i + 1, tf.minimum(least, hidden[i])),
        [0, tf.fill([2], INFINITY)],
    )
    return adam(tf, tf.reduce_sum(search[1] + tf.reduce_sum(hidden), name="loss"))


def branches(tf):
    x = placeholder(tf, None, 3)
    hidden = dense(tf, x, 2)
    either = tf.compat.v1.cond(tf.reduce_sum(x) > 0.0, lambda: tf.exp(hidden), lambda: hidden * 2.0)
    return adam(tf, tf.reduce_sum(either, name="loss"), ({"x": ones(4, 3)}, {"x": -ones(4, 3)}))


def both_sides_guarded(tf):
    hidden = tf.nn.relu(dense(tf, placeholder(tf, None, 3), 2))
    is_positive = hidden > 0.0
    logs = tf.math.log(tf.where(is_positive, hidden, tf.ones_like(hidden)))
    return adam(tf, tf.reduce_sum(tf.where(is_positive, logs, tf.zeros_like(logs)), name="loss"))


def division_without_nan(tf):
    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    shares = tf.math.divide_no_nan(hidden, tf.reduce_sum(hidden, axis=1, keepdims=True))
    return trained(tf, tf.reduce_sum(shares, name="loss"))


def looked_at(tf):
    """A value that is only looked at is no result."""
    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    safe = tf.where(tf.math.is_finite(tf.math.log(hidden)), hidden, tf.zeros_like(hidden))
    return trained(tf, tf.reduce_sum(safe, name="loss"))


def embeddings(tf):
    table = weight(tf, "table", random(10, 3))
    rows = tf.nn.embedding_lookup(table, tf.constant([1, 2, 2, 5]))
    loss = tf.reduce_mean(tf.square(rows), name="loss")
    return Program([loss, tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss)], ({},) * 2)


def keras_layers(tf):
    x = placeholder(tf, 4, 3)
    hidden = tf.keras.layers.LayerNormalization()(tf.keras.layers.Dense(4, activation="gelu")(x))
    return adam(tf, tf.reduce_mean(tf.square(hidden), name="loss"))


def functions(tf):
    @tf.function
    def weigh(values):
        return tf.nn.softmax(values) * tf.math.log1p(tf.exp(values))

    return adam(tf, tf.reduce_sum(weigh(dense(tf, placeholder(tf, None, 3), 2)), name="loss"))


def half(tf):
    hidden = tf.cast(dense(tf, placeholder(tf, None, 3), 8), tf.float16)
    return adam(
        tf, tf.reduce_mean(tf.cast(tf.matmul(hidden, hidden, transpose_b=True), tf.float32), name="loss")
    )


HEALTHY = [
    classifier,
    masked_attention,
    masked_by_adding,
    convolutions,
    recurrence,
    least_of_nothing_yet,
    branches,
    both_sides_guarded,
    division_without_nan,
    looked_at,
    embeddings,
    keras_layers,
    functions,
    half,
]
