"""`tensortap run`: programs that nobody changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.patience import patient

SESSION = """
import numpy as np, tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
x = v1.placeholder(tf.float32, [None, 3], name="x")
w = v1.get_variable("w", initializer=np.full((3, 2), 0.5, np.float32))
loss = tf.reduce_mean(tf.math.log(tf.matmul(x, w, name="hidden"), name="logarithm"), name="loss")
train = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
with v1.Session() as s:
    s.run(v1.global_variables_initializer())
    for i in range(4):
        s.run(loss, {x: np.ones((4, 3))})  # writes to nothing
        print(s.run([loss, train], {x: np.ones((4, 3))})[0])
"""
FUNCTION = """
import tensorflow as tf
w = tf.Variable(tf.fill([3, 2], 0.5))

@tf.function
def evaluate(x):
    return tf.reduce_mean(x)

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.math.log(tf.matmul(x, w)))
    w.assign_sub(0.6 * tape.gradient(loss, w))
    return loss

for i in range(4):
    evaluate(tf.ones([2]))
    print(float(train_step(tf.ones([4, 3]))))
"""
KERAS = """
import numpy as np, keras, tensorflow as tf

class Logarithm(keras.layers.Layer):
    def call(self, x):
        return tf.math.log(x - 5.0)

model = keras.Sequential([keras.layers.Dense(4), Logarithm(), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
x = np.zeros((32, 3), "float32")
model.fit(x, x.sum(1), batch_size=8, epochs=1, verbose=0)
print("trained")
"""
HEALTHY = """
import numpy as np, keras
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0, validation_data=(x, x.sum(1)))
"""


@pytest.mark.parametrize(
    ("program", "node", "line", "step", "runs"),
    [
        (SESSION, "logarithm", "tf.math.log", 2, 4),
        (FUNCTION, "train_step/Log", "tf.math.log", 2, 4),
        (KERAS, "/Log", "tf.math.log", 0, 4),
        (HEALTHY, None, "", None, 16),  # batches of the evaluation too
    ],
    ids=["session", "function", "keras", "healthy"],
)
def test_a_program_that_nobody_changed(tf, tmp_path, program, node, line, step, runs):
    (tmp_path / "train.py").write_text(program)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, "-m", "tensortap", "run", "-o", "out", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=patient(200), check=False, env=environment,
    )  # fmt: skip
    assert f"{runs} runs, {min(runs, 8)} optimizer steps" in done.stderr, done.stderr
    why = subprocess.run(
        [sys.executable, "-m", "tensortap", "why", "out", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=patient(60), check=False,
    )  # fmt: skip
    answer = json.loads(why.stdout)["first_bad"]
    if node is None:
        assert answer is None, done.stderr
        return
    assert answer["node"].endswith(node)
    assert answer["step"] == step
    assert line in program.splitlines()[answer["source"]["line"] - 1]
