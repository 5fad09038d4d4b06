from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.tensorflow import import_tensorflow


@pytest.fixture(scope="session")
def tf():
    return import_tensorflow()


@pytest.fixture
def v1(tf):
    return tf.compat.v1


@pytest.fixture
def model(tf, v1):
    """A small regression in a graph of its own, which is the default graph of the test."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        with v1.variable_scope("dense"):
            weight = v1.get_variable("weight", initializer=np.full((3, 2), 0.5, np.float32))
            bias = v1.get_variable("bias", initializer=np.zeros(2, np.float32))
            hidden = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weight, name="matmul"), bias), name="relu")
        loss = tf.reduce_mean(tf.math.log(hidden, name="log"), name="loss")
        step = v1.train.get_or_create_global_step()
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        yield SimpleNamespace(
            graph=graph,
            x=x,
            weight=weight,
            hidden=hidden,
            loss=loss,
            train=train,
            data=np.ones((4, 3), np.float32),
        )


@pytest.fixture
def raw(v1, model):
    """A session of TensorFlow's with the model in it."""
    with v1.Session(graph=model.graph) as session:
        session.run(v1.global_variables_initializer())
        yield session
