"""Train a small flax model with a mask that hides a NaN from the loss, and not from its gradient.

Run it with `tensortap run examples/jax_flax.py`. Under `python` the loss is NaN from some step on, and that is all.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

BATCH, WIDTH, STEPS, SHORT = 16, 8, 20, 12


class Model(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Linear(WIDTH, 32, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.embed(x)


def loss_of(model, x, is_real):
    """Embeddings should have length one; rows that only fill up the batch do not count. Is a mask enough?"""
    embedded = model(x)
    length = jnp.sqrt((embedded**2).sum(-1))
    return jnp.where(is_real, (length - 1) ** 2, 0.0).mean()


@nnx.jit
def train_step(model, optimizer, x, is_real):
    loss, gradients = nnx.value_and_grad(loss_of)(model, x, is_real)
    optimizer.update(model, gradients)
    return loss


def main():
    rng = np.random.default_rng(0)
    model = Model(nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    for step in range(STEPS):
        x = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
        if step == SHORT:
            x[-3:] = 0  # the end of the data: a batch that is filled up
        is_real = x.any(-1)
        loss = train_step(model, optimizer, jnp.asarray(x), jnp.asarray(is_real))
        if step % 5 == 4:
            print(f"step {step:2}  loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
