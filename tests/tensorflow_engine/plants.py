"""Programs for TensorFlow's graph mode with a planted fault each, and the answer they must get.

A plant is a function that is given TensorFlow, builds a graph and returns a `Program`; the line at fault ends in
`# here`. Nothing is imported that needs TensorFlow, so that tests can read the answers in a process without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["PLANTS", "Plant", "Program"]

NAN, INFINITY = float("nan"), float("inf")


@dataclass(frozen=True)
class Program:
    """A graph that was built: what is fetched, and the feeds of each step by the name of their placeholder."""

    fetches: Any
    feeds: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Plant:
    """A program and its answer.

    Attributes:
        build: makes the program, given the module `tensorflow`.
        op: name that the program gave to the op which makes the first bad value, or the scope it is in.
        op_type: what it executes.
        kind: of the cause.
        says: words the sentence of cause must have.
        phase: forward, backward, optimizer, input or parameter.
        step: in which it is found.
        has_refs: the variables are those of TensorFlow 1, which ops return.
        has_v1_loops: loops and branches are those of TensorFlow 1.
    """

    build: Callable[[Any], Program]
    op: str
    op_type: str
    kind: str
    says: str
    phase: str
    step: int
    has_refs: bool
    has_v1_loops: bool

    @property
    def name(self) -> str:
        return self.build.__name__

    @property
    def line(self) -> int | None:
        """Number of the line that ends in `# here`, None if the fault is in no line."""
        lines, start = inspect.getsourcelines(self.build)
        return next((start + i for i, text in enumerate(lines) if text.rstrip().endswith("# here")), None)


PLANTS: list[Plant] = []


def plant(op, op_type, kind, says="", *, phase="forward", step=0, refs=False, v1_loops=False):
    def add(build):
        PLANTS.append(Plant(build, op, op_type, kind, says, phase, step, refs, v1_loops))
        return build

    return add


def ones(*shape):
    return np.ones(shape, np.float32)


def trained(tf, loss, rate=0.1, feeds=None):
    """One gradient step of everything that can be trained."""
    train = tf.compat.v1.train.GradientDescentOptimizer(rate).minimize(loss)
    return Program([loss, train], feeds or ({"x": ones(4, 3)},) * 2)


def placeholder(tf, *shape):
    return tf.compat.v1.placeholder(tf.float32, shape, name="x")


def dense(tf, x, width, name="dense"):
    with tf.name_scope(name):
        kernel = weight(tf, f"{name}/kernel", np.full([int(x.shape[-1]), width], 0.5, np.float32))
        return tf.matmul(x, kernel, name="MatMul")


def weight(tf, name, value):
    return tf.compat.v1.get_variable(name, initializer=tf.constant(value, tf.float32))


# --- forward ---------------------------------------------------------------------------------------


@plant("log", "Log", "log-of-zero", "zero")
def logarithm_of_zero(tf):
    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    return trained(tf, -tf.reduce_mean(tf.math.log(hidden, name="log"), name="loss"))  # here


@plant("ratio", "RealDiv", "division-by-zero", "0/0")
def nothing_over_nothing(tf):
    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    total = tf.reduce_sum(hidden, axis=1, keepdims=True)
    shares = tf.divide(hidden, total, name="ratio")  # here
    return trained(tf, tf.reduce_sum(shares, name="loss"))


@plant("power", "Exp", "exp-overflow", "600")
def exponential_of_much(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    grown = tf.exp(400.0 * hidden, name="power")  # here
    return trained(tf, tf.reduce_sum(grown, name="loss"))


@plant("half", "Cast", "cast-overflow", "float16")
def cast_to_half(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    narrow = tf.cast(hidden * 1e5, tf.float16, name="half")  # here
    return trained(tf, tf.reduce_sum(tf.cast(narrow, tf.float32), name="loss"))


@plant("attention", "Softmax", "fully-masked-row", "1 of 4 rows")
def softmax_over_nothing(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    mask = tf.constant([[True, True], [True, False], [False, False], [True, True]])
    shares = tf.nn.softmax(tf.where(mask, hidden, -INFINITY), name="attention")  # here
    return trained(tf, tf.reduce_sum(shares * hidden, name="loss"))


@plant("x", "Placeholder", "bad-input", "bad when it came", phase="input", step=1)
def bad_feed(tf):
    loss = tf.reduce_sum(dense(tf, placeholder(tf, None, 3), 2), name="loss")
    bad = ones(4, 3)
    bad[2, 1] = NAN
    return trained(tf, loss, feeds=({"x": ones(4, 3)}, {"x": bad}))


@plant("IteratorGetNext", "IteratorGetNext", "bad-input", "bad when it came", phase="input", step=1)
def bad_data_set(tf):
    batches = np.ones((3, 4, 3), np.float32)
    batches[1, 0, 0] = INFINITY
    data = tf.data.Dataset.from_tensor_slices(batches)
    x = tf.compat.v1.data.make_one_shot_iterator(data).get_next()  # here
    return trained(tf, tf.reduce_sum(dense(tf, x, 2), name="loss"), feeds=({}, {}))


@plant("roots", "Sqrt", "sqrt-of-negative", "negative")
def root_of_variance(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    spread = tf.reduce_mean(hidden, axis=0) - 1.6
    return trained(tf, tf.reduce_sum(tf.sqrt(spread, name="roots"), name="loss"))  # here


@plant("inverse", "Rsqrt", "division-by-zero", "rsqrt of zero")
def own_norm_without_epsilon(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    centred = hidden - tf.reduce_mean(hidden, axis=1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=1, keepdims=True)
    normal = centred * tf.math.rsqrt(variance, name="inverse")  # here
    return trained(tf, tf.reduce_sum(normal, name="loss"))


@plant("power", "Pow", "power-of-negative", "no integer")
def power_of_negative(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    return trained(tf, tf.reduce_sum(tf.pow(-hidden, 1.3, name="power"), name="loss"))  # here


@plant("angle", "Acos", "acos-out-of-range", "outside")
def angle_beyond_one(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    return trained(tf, tf.reduce_sum(tf.acos(hidden, name="angle"), name="loss"))  # here


@plant("mean", "Mean", "mean-of-nothing", "no elements")
def mean_of_nothing(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    chosen = tf.boolean_mask(hidden, hidden[:, 0] > 100.0)
    return trained(tf, tf.reduce_mean(chosen, name="mean"))  # here


@plant("masked", "Mul", "zero-times-infinity", "0·inf")
def multiplied_mask(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    scores = tf.where(tf.constant([[True, False]]), hidden, -INFINITY)
    kept = tf.multiply(scores, tf.constant([[1.0, 0.0]]), name="masked")  # here
    return trained(tf, tf.reduce_sum(kept, name="loss"))


@plant("product", "MatMul", "overflow", "a matrix product")
def matrix_product_in_half(tf):
    hidden = tf.cast(dense(tf, placeholder(tf, None, 3), 64) * 100.0, tf.float16)
    product = tf.matmul(hidden, hidden, transpose_b=True, name="product")  # here
    return trained(tf, tf.reduce_mean(tf.cast(product, tf.float32), name="loss"))


@plant("ReadVariableOp", "ReadVariableOp", "bad-parameter", "start was bad when", phase="parameter")
def made_bad(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    start = weight(tf, "start", [1.0, NAN])
    return trained(tf, tf.reduce_sum(hidden * start, name="loss"))


@plant("CrossEntropy", "SparseSoftmaxCrossEntropyWithLogits", "masked-target", "score is −inf")
def masked_class(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    scores = tf.where(tf.constant([[True, False]]), hidden, -INFINITY)
    labels = tf.constant([0, 1, 0, 0])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)  # here
    return trained(tf, tf.reduce_mean(losses, name="loss"))


@plant("Neg", "_UnaryOpsComposition", "log-of-zero", "zero")
def done_in_one(tf):
    """The runtime executes the logarithm and what follows in one."""
    shares = tf.sigmoid(dense(tf, placeholder(tf, None, 3), 2) * 1000.0) - 1.0
    logs = tf.math.log(shares)  # here
    loss = tf.reduce_mean(-logs, name="loss")
    counted = weight(tf, "counted", 0.0)
    return Program([loss, tf.compat.v1.assign_add(counted, 1.0)], ({"x": ones(4, 3)},))


# --- gradients -------------------------------------------------------------------------------------


@plant(
    "gradients/distance_grad", "SqrtGrad", "sqrt-gradient-at-zero", "sqrt is infinite at 0", phase="backward"
)
def distance_to_itself(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)
    apart = tf.reduce_sum(tf.square(hidden - tf.roll(hidden, 1, axis=0)), axis=1)
    return trained(tf, tf.reduce_sum(tf.sqrt(apart, name="distance"), name="loss"))  # here


@plant("gradients/inner_grad", "Reciprocal", "log-gradient-at-zero", "log is infinite at 0", phase="backward")
def guarded_on_one_side(tf):
    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    logs = tf.math.log(hidden, name="inner")  # here
    return trained(tf, tf.reduce_sum(tf.where(hidden > 0.0, logs, tf.zeros_like(logs)), name="loss"))


@plant("gradients/length", "SqrtGrad", "sqrt-gradient-at-zero", "sqrt is infinite", phase="backward")
def division_of_norms(tf):
    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    lengths = tf.norm(hidden, axis=1, name="length")  # here
    return trained(tf, tf.reduce_sum(lengths, name="loss"))


@plant("gradients/bent_grad", "Pow", "power-gradient-at-zero", "infinite at 0", phase="backward")
def root_as_power(tf):
    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    return trained(tf, tf.reduce_sum(tf.pow(hidden, 0.3, name="bent"), name="loss"))  # here


# --- optimizers ------------------------------------------------------------------------------------


@plant(
    "update_dense/kernel", "ResourceApplyGradientDescent", "infinite-learning-rate", "rate", phase="optimizer"
)
def learning_rate_of_infinity(tf):
    loss = tf.reduce_sum(tf.square(dense(tf, placeholder(tf, None, 3), 2)), name="loss")
    return trained(tf, loss, rate=3e38)  # here


@plant(
    "update_dense/kernel",
    "ApplyGradientDescent",
    "infinite-learning-rate",
    "rate",
    phase="optimizer",
    refs=True,
)
def learning_rate_of_infinity_for_references(tf):
    loss = tf.reduce_sum(tf.square(dense(tf, placeholder(tf, None, 3), 2)), name="loss")
    return trained(tf, loss, rate=3e38)  # here


@plant("update_dense/kernel", "ApplyAdam", "epsilon-too-small", "zero", phase="optimizer", refs=True)
def adam_without_epsilon(tf):
    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    loss = tf.reduce_sum(hidden, name="loss")
    train = tf.compat.v1.train.AdamOptimizer(0.1, epsilon=0.0).minimize(loss)  # here
    return Program([loss, train], ({"x": ones(4, 3)},) * 2)


@plant("Square", "Square", "overflow", "growing", step=3)
def learning_rate_too_large(tf):
    loss = tf.reduce_sum(tf.square(dense(tf, placeholder(tf, None, 3), 2)), name="loss")
    return trained(tf, loss, rate=1e3, feeds=({"x": 10 * ones(4, 3)},) * 8)


# --- loops, branches and functions -----------------------------------------------------------------


@plant("decay", "Log", "log-of-negative", "negative")
def loop_that_goes_too_far(tf):
    hidden = dense(tf, placeholder(tf, None, 3), 2)

    def body(i, value):
        return i + 1, tf.math.log(value, name="decay")  # here

    loop = tf.while_loop(lambda i, _: i < 4, body, [0, hidden], name="loop")
    return trained(tf, tf.reduce_sum(loop[1], name="loss"))


@plant("decay", "Log", "log-of-negative", "negative", v1_loops=True)
def loop_of_tensorflow_1(tf):
    return loop_that_goes_too_far(tf)


@plant("deep", "Sqrt", "sqrt-of-negative", "negative")
def loop_in_a_loop(tf):
    def inner(i, value):
        return i + 1, tf.sqrt(value - 0.6, name="deep")  # here

    def outer(i, value):
        return i + 1, tf.while_loop(lambda j, _: j < 3, inner, [0, value])[1]

    hidden = dense(tf, placeholder(tf, None, 3), 2)
    loop = tf.while_loop(lambda i, _: i < 2, outer, [0, hidden])
    return trained(tf, tf.reduce_sum(loop[1], name="loss"))


@plant("inlog", "Log", "log-of-zero", "zero")
def mapped_over_rows(tf):
    hidden = dense(tf, placeholder(tf, 4, 3), 2)
    logs = tf.map_fn(lambda row: tf.math.log(row - 1.5, name="inlog"), hidden)  # here
    return trained(tf, tf.reduce_sum(logs, name="loss"))


@plant("branch", "Rsqrt", "division-by-zero", "rsqrt of zero", step=1)
def branch_that_is_rarely_taken(tf):
    x = placeholder(tf, None, 3)
    hidden = tf.nn.relu(dense(tf, x, 2))
    either = tf.compat.v1.cond(
        tf.reduce_sum(x) > 0.0,
        lambda: hidden,
        lambda: tf.math.rsqrt(hidden, name="branch"),  # here
        name="either",
    )
    return trained(tf, tf.reduce_sum(either, name="loss"), feeds=({"x": ones(4, 3)}, {"x": -ones(4, 3)}))


@plant("branch", "Rsqrt", "division-by-zero", "rsqrt of zero", step=1, v1_loops=True)
def branch_of_tensorflow_1(tf):
    return branch_that_is_rarely_taken(tf)


@plant("inside", "Reciprocal", "division-by-zero", "zero")
def function_that_divides(tf):
    @tf.function
    def weigh(values):
        return tf.math.reciprocal(values, name="inside")  # here

    hidden = tf.nn.relu(-dense(tf, placeholder(tf, None, 3), 2))
    return trained(tf, tf.reduce_sum(weigh(hidden), name="loss"))
