"""What `where` does not choose is hidden, but its gradient comes back: JAX's most frequent NaN, and its remedy."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jax_engine.following import followed
from tests.jax_engine.planted import sgd

REMEDY = "jnp.where(ok, f(jnp.where(ok, x, {safe})), 0.0)"


def kept(ok, value):
    """A function of somebody's own around `jnp.where`."""
    return jnp.where(ok, value, 0.0)


def unless_zero(function):
    return lambda h: kept(h > 0, function(h)).sum()


def in_scan(function):
    return lambda h: jax.lax.scan(lambda c, row: (c + unless_zero(function)(row), None), 0.0, h)[0]


@jax.custom_jvp
def root(x):
    return jnp.sqrt(x)


@root.defjvp
def _slope_of_root(given, slopes):
    return root(given[0]), slopes[0] * 0.5 / jnp.sqrt(given[0])


LEAKS = {
    "log": (unless_zero(jnp.log), 0.0),
    "sqrt": (unless_zero(jnp.sqrt), 0.0),
    "sqrt of a negative": (unless_zero(jnp.sqrt), -1.0),
    "rsqrt": (unless_zero(jax.lax.rsqrt), 0.0),
    "divisor": (unless_zero(lambda h: jnp.sin(h) / h), 0.0),
    "reciprocal": (unless_zero(jnp.reciprocal), 0.0),
    "power": (unless_zero(lambda h: h**0.3), 0.0),
    "arccos": (lambda h: kept(h < 2, jnp.arccos(h / 2)).sum(), 2.0),
    "arctanh": (lambda h: kept(h < 2, jnp.arctanh(h / 2)).sum(), 2.0),
    "exp": (lambda h: kept(h < 50, jnp.exp(h)).sum(), 200.0),
    "norm": (lambda h: kept(h[:, :1] > 0, h / jnp.linalg.norm(h[:, :1], axis=-1, keepdims=True)).sum(), 0.0),
    "product that is NaN": (unless_zero(lambda h: h * jnp.log(h)), 0.0),
    "lax.select": (lambda h: jax.lax.select(h > 0, jnp.sqrt(h), jnp.zeros_like(h)).sum(), 0.0),
    "nan_to_num": (lambda h: jnp.nan_to_num(jnp.sqrt(h)).sum(), -1.0),
    "vmap": (lambda h: jax.vmap(unless_zero(jnp.sqrt))(h).sum(), 0.0),
    "scan, log": (in_scan(jnp.log), 0.0),
    "scan, divisor": (in_scan(lambda row: 1 / row), 0.0),
    "checkpoint": (jax.checkpoint(unless_zero(jnp.sqrt)), 0.0),
    "derivative of one's own": (unless_zero(root), 0.0),
    "jit": (jax.jit(unless_zero(jnp.sqrt)), 0.0),
}

NO_LEAKS = {
    "not masked": lambda h: jnp.sqrt(h).sum(),
    "chosen": lambda h: jnp.where(h > -1, jnp.sqrt(h), 0.0).sum(),
    "masked elsewhere": lambda h: jnp.where(jnp.arange(3) < 2, jnp.sqrt(h), 0.0).sum(),
}


def trained(loss_of, bad):
    step = sgd(lambda params, x: loss_of(x * params["w"]), 0.0)
    params = {"w": jnp.ones(3)}
    for index in range(3):
        x = np.ones((4, 3), np.float32)
        x[0, 0] = bad if index == 1 else 1
        params, _ = step(params, jnp.asarray(x))


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_recognised(name, tmp_path):
    loss_of, bad = LEAKS[name]
    _, report, _ = followed(lambda: trained(loss_of, bad), tmp_path / "root")
    found = report.first_bad
    assert found.step == 1
    assert "jnp.where hides the value there, but not its gradient" in found.cause.sentence
    is_arc = name.startswith(("arc", "exp"))
    assert REMEDY.format(safe="0.0" if is_arc else "1.0") in found.cause.advice
    assert ("iteration 0 of the scan" in found.during) == name.startswith("scan")


@pytest.mark.parametrize("name", NO_LEAKS)
def test_what_is_used_is_no_leak(name, tmp_path):
    _, report, _ = followed(lambda: trained(NO_LEAKS[name], 0.0), tmp_path / "root")
    assert report.first_bad.cause.kind == "sqrt-gradient-at-zero"
    assert "hides" not in report.first_bad.cause.sentence


def test_in_a_module_of_equinox(tmp_path):
    def program():
        model = eqx.nn.Linear(3, 4, key=jax.random.key(0))

        @eqx.filter_jit
        def train_step(model, x):
            def loss_of(model):
                h = jnp.abs(jax.vmap(model)(x)) * x[:, :1]
                return jnp.where(h > 0, 1 / h, 0.0).sum()

            gradients = eqx.filter_grad(loss_of)(model)
            return eqx.apply_updates(model, jax.tree.map(jnp.zeros_like, gradients)), gradients

        for index in range(3):
            model, _ = train_step(model, jnp.ones((4, 3)).at[2, 0].set(index != 1))

    _, report, _ = followed(program, tmp_path / "root")
    assert (report.first_bad.step, report.first_bad.cause.kind) == (1, "division-by-zero")
    assert REMEDY.format(safe="1.0") in report.first_bad.cause.advice
