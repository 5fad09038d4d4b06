"""Sessions over compiled steps: what is inside loops, what takes the place of a tensor, taps of either kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensortap as tt
from tensortap.engines.jax import programs
from tensortap.engines.jax.follow import chain, sentinel
from tensortap.reader import SessionDir
from tests.jax_engine.following import followed
from tests.jax_engine.planted import PLANTS, sgd

EXAMPLE = Path(__file__).parents[2] / "examples" / "jax_flax.py"


@pytest.fixture(params=["native", "portable"])
def taps(request, monkeypatch):
    if request.param == "portable":
        for module in (programs, sentinel):
            monkeypatch.setattr(module, "library", lambda: None)
    return request.param


def looping():
    @jax.jit
    def step(state, xs):
        def body(carry, x):
            carry = carry + jnp.square(x) * state["w"]
            return carry, carry

        total, sums = jax.lax.scan(body, 0.0, xs)
        return {"w": state["w"] + 1}, {"total": total, "sums": sums}

    return tt.jax.Session(step, {"w": jnp.float32(1.0)})


class TestTaps:
    def test_iterations_are_executions(self, taps):
        with looping() as session:
            names = []
            tap = tt.RunOptions(
                taps=[lambda node, slot, value: names.append((node.name, np.asarray(value).tolist()))]
            )
            session.run("total", {"xs": jnp.arange(4.0)}, tap)
        assert [value for name, value in names if name == "square"] == [0.0, 1.0, 4.0, 9.0]

    def test_a_feed_takes_the_place_in_every_iteration(self, taps):
        with looping() as session:
            session.run("square:0", {"xs": jnp.arange(4.0)})
            assert session.run("total", {"xs": jnp.arange(4.0), "square:0": np.float32(5)}) == 4 * 5 * 2

    def test_what_is_fetched_from_a_loop_is_of_its_last_iteration(self, taps):
        with looping() as session:
            assert session.run("square:0", {"xs": jnp.arange(4.0)}) == 9

    def test_both_kinds_find_the_same(self, taps, tmp_path):
        for name in ("nested_scans", "inside_a_branch"):
            _, report, _ = followed(PLANTS[name].program, tmp_path / name)
            assert report.first_bad.node.op_type == "log"
            assert PLANTS[name].iteration in report.first_bad.during


def bad_keys(session, root, feeds, debug_op, **options):
    """Watch keys of what is recorded as bad, for each run."""
    watched = tt.WatchOptions(debug_op, keep_bad=2, **options)
    with tt.DumpingDebugWrapperSession(session, root, watch_fn=watched) as wrapped:
        for feed in feeds:
            wrapped.run(None, feed)
    session.reopen()
    return [
        {
            each.watch_key
            for each in SessionDir(root).run(index).dumped_tensor_data
            if each.debug_op == "DebugNumericSummary" and each.get_tensor()[[2, 3, 7]].any()
        }
        for index in range(len(feeds))
    ]


class TestFewTaps:
    MUTED, ALL = "DebugNumericSummary(mute_if_healthy=true)", "DebugNumericSummary"

    def test_only_what_is_bad_is_recorded_and_all_of_that(self, tmp_path):
        def loss_of(params, x):
            return jnp.log((x * params["w"]).sum(-1)).mean()

        step = sgd(loss_of, 0.0)
        session = tt.jax.Session(lambda x: {"loss": step({"w": jnp.ones(3)}, x)[1]})
        feeds = [{"x": jnp.full((2, 3), value)} for value in (1.0, 0.0)]
        found = bad_keys(session, tmp_path / "few", feeds, self.MUTED)
        assert found == bad_keys(session, tmp_path / "all", feeds, self.ALL)
        assert not found[0]
        assert found[1]

    def test_what_is_bad_is_seen_though_nobody_wants_what_it_shows_in(self, tmp_path):
        session = tt.jax.Session(jax.jit(lambda x: {"y": jnp.log(x) * 2}))
        feeds = [{"x": jnp.zeros(4)}]
        found = bad_keys(session, tmp_path / "few", feeds, self.MUTED, node_name_regex_allowlist="log")
        assert found == [{"log:0:DebugNumericSummary"}]

    def test_a_large_divisor_that_overflows_is_seen_though_the_quotient_is_good(self, tmp_path):
        """The second moments are finite; divided by what corrects their bias, in the divisor of Adam, they are not."""

        @jax.jit
        def step(state, scale):
            moments = 0.999 * state["moments"] + scale
            divisor = jnp.sqrt(moments / (1 - 0.999 ** state["count"])) + 1e-8
            params = state["params"] - 1e-3 / divisor
            return {"params": params, "moments": moments, "count": state["count"] + 1}, {}

        zeros = jnp.zeros((256, 128))
        start = {"params": zeros, "moments": zeros, "count": jnp.float32(1)}
        session = tt.jax.Session(step, start)
        feeds = [{"scale": jnp.float32(scale)} for scale in (1.0, 1e30, 3e36, 1.0)]
        found = bad_keys(session, tmp_path / "few", feeds, self.MUTED)
        session.replace_state(start)
        assert found == bad_keys(session, tmp_path / "all", feeds, self.ALL)
        assert [bool(each) for each in found] == [False, False, True, True]


class TestFollowing:
    def test_arguments_are_kept_within_a_budget(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sentinel, "_memory_budget", lambda: 1)
        _, report, seen = followed(PLANTS["log_of_zero"].program, tmp_path / "root")
        assert report.first_bad.step == 3
        assert seen.steps == 6

    @pytest.mark.parametrize("bad", ["params", "moments", "loss", "given_away"])
    @pytest.mark.parametrize("bad_step", [1, 3, 6])
    def test_large_results_are_looked_at_in_chains_and_the_step_is_still_right(
        self, tmp_path, monkeypatch, bad, bad_step
    ):
        """State that stays bad once it is, metrics that do not, and state that every call destroys."""
        monkeypatch.setattr(chain, "_LONGEST", 3)

        def train(state, x, which):
            params, moments = state
            gradient = jnp.where(which == 1, jnp.log(x - 1), 1e-3 * x) * jnp.ones_like(params)
            moments = 0.9 * moments + (x * jnp.where(which == 2, 1e30, 1.0)) ** 2
            params = params - gradient
            loss = jnp.where(which == 3, jnp.sqrt(-x), (params * x).mean())
            return (params, moments), loss

        def program():
            step = jax.jit(train, donate_argnums=(0,) if bad == "given_away" else ())
            state = (jnp.ones((1024, 512)), jnp.ones((1024, 512)))
            which = {"params": 1, "given_away": 1, "moments": 2, "loss": 3}[bad]
            losses = []
            for number in range(8):
                state, loss = step(state, jnp.float32(1), which if number == bad_step else 0)
                losses.append(loss)
            return losses

        _, report, seen = followed(program, tmp_path / "root")
        assert (report.first_bad.step, seen.steps) == (bad_step, 8)
        primitive = {"moments": "integer_pow", "loss": "sqrt"}.get(bad, "log")
        assert report.first_bad.node.op_type == primitive

    @pytest.mark.parametrize("donated", [(), (0,)])
    def test_little_is_kept_however_far_the_program_runs_ahead(self, tmp_path, donated):
        """One state of a chain of calls, and what each of them was given besides."""

        def program():
            step = jax.jit(lambda state, x: (state * 0.5 + x, state[0, 0]), donate_argnums=donated)
            state = jnp.ones((512, 512))
            most = 0
            for number in range(40):
                state, _ = step(state, jnp.float32(number))
                most = max(most, sum(each.size == state.size for each in jax.live_arrays()))
            return most

        before = sum(each.size == 512 * 512 for each in jax.live_arrays())
        most, report, seen = followed(program, tmp_path / "root")
        assert report.first_bad is None
        assert seen.steps == 40
        assert most - before < 20  # of each chain that is not looked at yet the first and the last

    def test_what_a_call_was_given_is_there_though_a_later_one_destroys_it(self, tmp_path):
        """Gradients and their update are calls of their own; the update is given the parameters away."""

        def program():
            gradients = jax.jit(jax.grad(lambda params, x: (jnp.log(x) * params**2).mean()))
            update = jax.jit(lambda params, gradient: params - 0.1 * gradient, donate_argnums=0)
            params = jnp.ones((512, 512))
            for number in range(8):
                params = update(params, gradients(params, 0.0 if number == 5 else 2.0))

        _, report, seen = followed(program, tmp_path / "root")
        assert (report.first_bad.step, seen.steps) == (5, 8)
        assert report.first_bad.node.op_type == "log"

    def test_a_call_that_fails_does_not_end_watching(self, tmp_path):
        def program():
            step = jax.jit(lambda state, x: state * 0.5 + jnp.log(x))
            state = jnp.ones((512, 512))
            gone = jnp.ones((512, 512))
            gone.delete()
            for number in range(6):
                if number == 3:
                    with pytest.raises(RuntimeError, match="deleted"):
                        step(state, gone)
                state = step(state, jnp.full((512, 512), 0.0 if number == 4 else 1.0))

        _, report, seen = followed(program, tmp_path / "root")
        assert (report.first_bad.step, seen.steps) == (4, 6)
        assert report.first_bad.node.op_type == "log"

    def test_what_calls_the_host_is_not_executed_again_to_find_the_step(self, tmp_path):
        heard = []

        def program():
            def train(state, x):
                jax.debug.callback(lambda each: heard.append(float(each)), x)
                return state * 0.5 + jnp.log(x)

            step = jax.jit(train)
            state = jnp.ones((512, 512))
            for number in range(6):
                state = step(state, jnp.float32(0.0 if number == 4 else 1.0 + number))
            jax.block_until_ready(state)
            jax.effects_barrier()

        _, report, _ = followed(program, tmp_path / "root")
        assert report.first_bad.step == 4
        assert [heard.count(1.0 + number) for number in range(4)] == [1, 1, 1, 1]

    def test_steps_are_counted(self, tmp_path):
        def program():
            step = sgd(lambda p, x: (x * p["w"]).sum(), 0.1)
            params = {"w": jnp.ones(3)}
            for _ in range(5):
                params, _ = step(params, jnp.ones((2, 3)))

        _, _, seen = followed(program, tmp_path / "root")
        assert seen.steps == 5

    def test_everything_watched_finds_it_too(self, tmp_path):
        _, report, seen = followed(PLANTS["donated_state"].program, tmp_path / "root", every=1)
        assert seen.runs == 5
        assert report.first_bad.step == 2
        assert report.first_bad.node.name == "log"

    def test_a_program_of_its_own(self, tmp_path):
        """The whole way: a command, a program that nobody changed, the answer."""
        command = [sys.executable, "-m", "tensortap", "run", "-q", "-o", "runs", str(EXAMPLE)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "gradients/sqrt/div" in done.stderr
        why = [sys.executable, "-m", "tensortap", "why", "runs", "--json"]
        found = json.loads(subprocess.run(why, cwd=tmp_path, capture_output=True, text=True).stdout)[
            "first_bad"
        ]
        assert found["step"] == 12
        assert "The gradient of sqrt is infinite at 0" in str(found["cause"])
        assert "jnp.sqrt" in found["source"]["text"]
