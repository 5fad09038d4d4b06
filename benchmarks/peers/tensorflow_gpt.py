"""The `gpt` training step of workloads.py in TensorFlow, for the debuggers that watch only TensorFlow.

The same sizes, layers and optimizer, in plain operations, so that one description serves both a graph run by
a session (tfdbg) and a `tf.function` (tfdbg2). TensorFlow cuts the step into other operations than PyTorch,
so a time is only ever compared with the unwatched step of the same framework.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 1000, 128, 256, 4, 4, 8
# The values torch.optim.AdamW has when only the learning rate is given.
LEARNING_RATE, DECAY, BETA1, BETA2, EPSILON = 3e-4, 1e-2, 0.9, 0.999, 1e-8
FUTURE = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), k=1)  # what a token must not see


def make_batch() -> tuple[np.ndarray, np.ndarray]:
    """Random tokens, and the same moved by one as targets."""
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=(BATCH, LENGTH + 1), dtype=np.int32)
    return tokens[:, :-1], tokens[:, 1:]


class TrainingStep:
    """Parameters and optimizer state; a call trains once and gives the loss and the updates it depends on."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)
        self.parameters: dict[str, tf.Variable] = {}
        self.add("token", (VOCABULARY, WIDTH), 1.0)
        self.add("position", (LENGTH, WIDTH), 1.0)
        for layer in range(LAYERS):
            self.add_norm(f"block{layer}/norm_attention")
            self.add_linear(f"block{layer}/qkv", WIDTH, 3 * WIDTH)
            self.add_linear(f"block{layer}/projection", WIDTH, WIDTH)
            self.add_norm(f"block{layer}/norm_mlp")
            self.add_linear(f"block{layer}/wide", WIDTH, 4 * WIDTH)
            self.add_linear(f"block{layer}/narrow", 4 * WIDTH, WIDTH)
        self.add_norm("norm")
        self.add("head", (WIDTH, VOCABULARY), WIDTH**-0.5)
        self.count = tf.Variable(1.0, trainable=False, name="count")
        self.means = {name: make_zeros(value, f"{name}/mean") for name, value in self.parameters.items()}
        self.squares = {name: make_zeros(value, f"{name}/square") for name, value in self.parameters.items()}

    def __call__(self, tokens: Any, targets: Any) -> tuple[Any, list[Any]]:
        logits, targets = self.forward(tokens), tf.reshape(targets, (BATCH * LENGTH,))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
        gradients = tf.gradients(loss, list(self.parameters.values()))
        return loss, self.update(dict(zip(self.parameters, gradients, strict=True)))

    # Forward. Batch and time are one axis but in attention, so that a linear layer is one MatMul.

    def forward(self, tokens: Any) -> Any:
        x = tf.gather(self.parameters["token"], tokens) + self.parameters["position"]
        x = tf.reshape(x, (BATCH * LENGTH, WIDTH))
        for layer in range(LAYERS):
            x = x + self.attend(f"block{layer}", self.normalise(f"block{layer}/norm_attention", x))
            wide = self.apply_linear(f"block{layer}/wide", self.normalise(f"block{layer}/norm_mlp", x))
            x = x + self.apply_linear(f"block{layer}/narrow", tf.nn.gelu(wide))
        return tf.matmul(self.normalise("norm", x), self.parameters["head"])

    def attend(self, block: str, x: Any) -> Any:
        qkv = tf.reshape(self.apply_linear(f"{block}/qkv", x), (BATCH, LENGTH, 3, HEADS, WIDTH // HEADS))
        q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
        scores = tf.matmul(q, k, transpose_b=True) * (WIDTH // HEADS) ** -0.5
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores + FUTURE), v), (0, 2, 1, 3))
        return self.apply_linear(f"{block}/projection", tf.reshape(mixed, (BATCH * LENGTH, WIDTH)))

    def normalise(self, name: str, x: Any) -> Any:
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        scale, offset = self.parameters[f"{name}/scale"], self.parameters[f"{name}/offset"]
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-5)

    def apply_linear(self, name: str, x: Any) -> Any:
        return tf.nn.bias_add(
            tf.matmul(x, self.parameters[f"{name}/kernel"]), self.parameters[f"{name}/bias"]
        )

    # AdamW: TensorFlow's own kernel for Adam, after the decay

    def update(self, gradients: dict[str, Any]) -> list[Any]:
        powers = {"beta1_power": BETA1**self.count, "beta2_power": BETA2**self.count}
        constants = {"lr": LEARNING_RATE, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}
        updates = []
        for name, parameter in self.parameters.items():
            gradient = tf.convert_to_tensor(gradients[name])
            with tf.control_dependencies([gradient]):
                decayed = parameter.assign_sub(LEARNING_RATE * DECAY * parameter, read_value=False)
            with tf.control_dependencies([decayed]):
                updates.append(
                    tf.raw_ops.ResourceApplyAdam(
                        var=parameter.handle,
                        m=self.means[name].handle,
                        v=self.squares[name].handle,
                        grad=gradient,
                        **powers,
                        **constants,
                    )
                )
        with tf.control_dependencies(updates):
            return [*updates, self.count.assign_add(1.0, read_value=False)]

    # Parameters

    def add(self, name: str, shape: tuple[int, ...], scale: float, centre: float = 0.0) -> None:
        values = self.generator.normal(centre, scale, shape).astype(np.float32)
        self.parameters[name] = tf.Variable(values, name=name)

    def add_linear(self, name: str, inputs: int, outputs: int) -> None:
        self.add(f"{name}/kernel", (inputs, outputs), inputs**-0.5)
        self.add(f"{name}/bias", (outputs,), 0.0)

    def add_norm(self, name: str) -> None:
        self.add(f"{name}/scale", (WIDTH,), 0.0, centre=1.0)
        self.add(f"{name}/offset", (WIDTH,), 0.0)


def make_zeros(like: tf.Variable, name: str) -> tf.Variable:
    return tf.Variable(np.zeros(like.shape.as_list(), np.float32), trainable=False, name=name)
