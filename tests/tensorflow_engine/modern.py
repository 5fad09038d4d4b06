"""Programs as people write them for TensorFlow 2: functions, tapes, Keras and tf.data; with a planted fault each, or
with nothing wrong.

Each is a function that is given TensorFlow and trains; the line at fault ends in `# here`. They return what can be
compared to the last bit.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["HEALTHY", "PLANTS", "ModernPlant"]


@dataclass(frozen=True)
class ModernPlant:
    """A program and its answer.

    Attributes:
        program: trains, given the module `tensorflow`.
        op_type: what makes the first bad value.
        kind: of the cause.
        step: in which it is found.
        proof: words that what is said about the cause must have.
    """

    program: Callable[[Any], Any]
    op_type: str
    kind: str
    step: int = 0
    proof: str = ""

    @property
    def name(self) -> str:
        return self.program.__name__


PLANTS: list[ModernPlant] = []
HEALTHY: list[Callable[[Any], Any]] = []


def plant(op_type, kind, step=0, proof=""):
    def add(program):
        PLANTS.append(ModernPlant(program, op_type, kind, step, proof))
        return program

    return add


def healthy(program):
    HEALTHY.append(program)
    return program


def is_at_fault(frame) -> bool:
    """Whether a frame is on a line that ends in `# here`."""
    return linecache.getline(frame.file, frame.line).rstrip().endswith("# here")


def ones(*shape):
    return np.ones(shape, np.float32)


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def keras_of(tf):
    tf.keras.utils.set_random_seed(3)
    return tf.keras


def fit(model, x, y, **options):
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options.pop("compiled", {})})
    history = model.fit(x, y, **{"batch_size": 4, "epochs": 1, "verbose": 0, "shuffle": False, **options})
    return [*history.history.values(), *model.get_weights()]


def sgd(tf, weight, loss_of, rate=0.1):
    @tf.function
    def train_step(*batch):
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        weight.assign_sub(rate * tape.gradient(loss, weight))
        return loss

    return train_step


# --- plants ----------------------------------------------------------------------------------------


@plant("Log", "log-of-negative", 2)
def own_loop_goes_too_far(tf):
    weight = tf.Variable(tf.fill([3, 2], 0.5))
    step = sgd(tf, weight, lambda x: tf.reduce_mean(tf.math.log(x @ weight)), 0.6)  # here
    return [float(step(tf.ones([4, 3]))) for _ in range(4)]


@plant("SqrtGrad", "sqrt-gradient-at-zero")
def tape_of_a_distance(tf):
    weight = tf.Variable(tf.ones([3, 2]))

    def loss_of(x):
        apart = x @ weight - tf.stop_gradient(x @ weight)
        return tf.reduce_sum(tf.sqrt(tf.reduce_sum(apart**2, axis=1)))  # here

    return [float(sgd(tf, weight, loss_of)(tf.ones([4, 3]))) for _ in range(2)]


@plant("Exp", "exp-overflow", proof="execution 3 of 5")
def loop_of_autograph(tf):
    weight = tf.Variable(tf.ones([2]))

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            state = x * weight
            for _ in tf.range(5):
                state = tf.exp(state)  # here
            loss = tf.reduce_sum(state)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return [float(train_step(tf.constant([1.7, 1.7])))]


@plant("Rsqrt", "division-by-zero", 1)
def branch_of_autograph(tf):
    weight = tf.Variable(tf.ones([2]))

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            if tf.reduce_sum(x) > 0.0:
                loss = tf.reduce_sum(x * weight)
            else:
                loss = tf.reduce_sum(tf.math.rsqrt(tf.nn.relu(x * weight)))  # here
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return [float(train_step(tf.constant(value))) for value in ([1.0, 1.0], [-1.0, -1.0])]


@plant("IteratorGetNext", "bad-input", 1)
def data_with_a_hole(tf):
    keras = keras_of(tf)
    x = ones(8, 3)
    x[5, 1] = np.nan
    data = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(4)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, epochs=1, verbose=0, shuffle=False)


@plant("Log", "log-of-negative")
def layer_of_ones_own(tf):
    keras = keras_of(tf)

    class Logarithm(keras.layers.Layer):
        def call(self, x):
            return tf.math.log(x - 5.0)  # here

    model = keras.Sequential([keras.layers.Dense(4), Logarithm(), keras.layers.Dense(1)])
    fit(model, ones(8, 3), ones(8))


@plant("RealDiv", "division-by-zero")
def functional_model_that_divides(tf):
    keras = keras_of(tf)
    x = keras.Input((3,))
    hidden = keras.layers.Dense(4, activation="relu", kernel_initializer=keras.initializers.Constant(-1.0))(x)
    shares = keras.layers.Lambda(lambda h: h / tf.reduce_sum(h, axis=1, keepdims=True))(hidden)  # here
    model = keras.Model(x, keras.layers.Dense(1)(shares))
    fit(model, ones(8, 3), ones(8))


@plant("Sqrt", "sqrt-of-negative", 1)
def subclassed_model(tf):
    keras = keras_of(tf)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2, kernel_initializer="ones")

        def call(self, x):
            return tf.sqrt(self.dense(x))  # here

    fit(Model(), np.concatenate([ones(4, 3), -ones(4, 3)]), ones(8, 2))


@plant("Log", "log-of-zero", 2)
def optimizer_that_reads_what_it_has_just_written(tf):
    """Adam of Keras reads its state after the update of it, which may well be before the loss is computed."""
    keras = keras_of(tf)
    weight, optimizer = keras.Variable(tf.ones([3])), keras.optimizers.Adam(0.01)

    @tf.function
    def train_step(scale):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(tf.math.log(tf.sigmoid(weight) * scale))  # here
        optimizer.apply_gradients([(tape.gradient(loss, weight.value), weight)])
        return loss

    for scale in (1.0, 1.0, 0.0):
        train_step(tf.constant(scale))


@plant("Cast", "cast-overflow")
def mixed_precision(tf):
    weight = tf.Variable(tf.fill([3, 2], 300.0))

    def loss_of(x):
        hidden = tf.cast(x @ weight * 300.0, tf.float16)  # here
        return tf.reduce_sum(tf.cast(hidden, tf.float32))

    return [float(sgd(tf, weight, loss_of)(tf.ones([4, 3])))]


@plant("Rsqrt", "division-by-zero")
def optimizer_without_epsilon(tf):
    """Keras writes its updates in ops: momentum over the root of nothing, which TensorFlow executes as one op."""
    keras = keras_of(tf)
    model = keras.Sequential([keras.layers.Dense(2, kernel_initializer="zeros", use_bias=False)])
    model.compile(keras.optimizers.Adam(0.1, epsilon=0.0), "mse")
    model.fit(ones(4, 3), np.zeros((4, 2), np.float32), epochs=1, verbose=0)  # here


@plant("_UnaryOpsComposition", "log-of-zero", proof="Executed in one: Relu")
def functions_that_are_made_one(tf):
    """TensorFlow executes relu and log in one, as nothing needs what is between."""
    counted = tf.Variable(0.0)

    @tf.function
    def evaluate(x):
        counted.assign_add(1.0)
        return tf.reduce_sum(tf.math.log(tf.nn.relu(x)))  # here

    return [float(evaluate(tf.constant([[-1.0, 2.0]])))]


@plant("Log", "log-of-zero", 2)
def traced_for_each_shape(tf):
    weight = tf.Variable(1.0)
    step = sgd(tf, weight, lambda x: tf.reduce_sum(tf.math.log(x * weight)))  # here
    return [float(step(tf.ones([size]) if size < 4 else tf.zeros([size]))) for size in (2, 3, 4)]


# --- healthy ---------------------------------------------------------------------------------------


@healthy
def plain_classifier(tf):
    keras = keras_of(tf)
    model = keras.Sequential(
        [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    labels = np.arange(8) % 3
    return fit(model, random(8, 4), labels, compiled={"loss": loss, "optimizer": "adam"})


@healthy
def convolutional_classifier(tf):
    keras = keras_of(tf)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(2, activation="softmax"),
        ]
    )
    return fit(
        model, random(8, 8, 8, 1), np.arange(8) % 2, compiled={"loss": "sparse_categorical_crossentropy"}
    )


@healthy
def recurrent_network(tf):
    keras = keras_of(tf)
    model = keras.Sequential(
        [keras.layers.Embedding(10, 4, mask_zero=True), keras.layers.LSTM(5), keras.layers.Dense(1)]
    )
    return fit(model, np.array([[1, 2, 0, 0], [3, 0, 0, 0]] * 4), ones(8))


@healthy
def attention_with_a_mask(tf):
    keras = keras_of(tf)
    x = keras.Input((5, 4))
    attended = keras.layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True)
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.LayerNormalization()(attended)))
    return fit(model, random(4, 5, 4), random(4, 5, 1))


@healthy
def two_optimizers(tf):
    keras = keras_of(tf)
    maker, critic = keras.layers.Dense(2), keras.layers.Dense(1)
    maker.build((None, 2))
    critic.build((None, 2))
    of_maker, of_critic = keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01)
    of_maker.build(maker.trainable_variables)
    of_critic.build(critic.trainable_variables)

    @tf.function
    def train_step(noise, real):
        with tf.GradientTape() as one, tf.GradientTape() as other:
            judged = critic(maker(noise))
            made = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.ones_like(judged), judged))
            found = tf.reduce_mean(tf.nn.softplus(-critic(real)) + tf.nn.softplus(judged))
        of_maker.apply(one.gradient(made, maker.trainable_variables), maker.trainable_variables)
        of_critic.apply(other.gradient(found, critic.trainable_variables), critic.trainable_variables)
        return made, found

    losses = [train_step(random(4, 2), random(4, 2)) for _ in range(3)]
    return [*map(float, np.ravel(losses)), *(each.numpy() for each in maker.trainable_variables)]


@healthy
def ragged_and_sparse(tf):
    weight = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def train_step(rows, matrix):
        with tf.GradientTape() as tape:
            means = tf.reduce_mean(rows, axis=1)
            loss = tf.reduce_sum(tf.sparse.sparse_dense_matmul(matrix, weight)) + tf.reduce_sum(means)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    rows = tf.ragged.constant([[1.0, 2.0], [3.0]])
    matrix = tf.sparse.from_dense([[1.0, 0.0, 2.0]])
    return [float(train_step(rows, matrix)) for _ in range(2)] + [weight.numpy()]


@healthy
def random_numbers_and_lookups(tf):
    table = tf.Variable(random(6, 3))
    generator = tf.random.Generator.from_seed(5)

    @tf.function
    def train_step(rows):
        with tf.GradientTape() as tape:
            found = tf.gather(table, rows) + generator.normal([3])
            loss = tf.reduce_mean(tf.nn.l2_normalize(found, axis=1) ** 2)
        slices = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(0.1 * slices.values, slices.indices))
        return loss

    return [float(train_step(tf.constant([1, 1, 4]))) for _ in range(3)] + [table.numpy()]


@healthy
def loss_scale_that_finds_itself(tf):
    """The scale begins far too high; steps with infinite gradients are left out, as they should be."""
    keras = keras_of(tf)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, dtype="float32")]
        )
        return fit(model, random(8, 4), random(8, 1), epochs=2)
    finally:
        keras.mixed_precision.set_global_policy("float32")


@healthy
def maximum_that_begins_at_minus_infinity(tf):
    weight = tf.Variable(tf.ones([4]))

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            most = tf.constant(-np.inf)
            for value in x * weight:
                most = tf.maximum(most, value)
            loss = most + tf.reduce_sum(weight)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return [float(train_step(tf.constant([1.0, 3.0, 2.0, 0.0]))) for _ in range(2)]


@healthy
def saved_and_loaded_again(tf):
    import tempfile

    keras = keras_of(tf)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    with tempfile.TemporaryDirectory() as folder:
        first = fit(model, random(8, 3), random(8, 1))
        model.save(f"{folder}/model.keras")
        again = keras.models.load_model(f"{folder}/model.keras")
        return [*first, *fit(again, random(8, 3), random(8, 1))]
