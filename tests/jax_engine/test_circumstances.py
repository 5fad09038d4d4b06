"""Programs in unusual circumstances: JAX's own checks, its caches and profiler, threads, processes, results that do not
come again."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.api_util import InternalFloatingPointError
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tensortap as tt
from tensortap.analyze.session import search_session
from tensortap.profile.timeline import Timeline
from tensortap.reader import SessionDir
from tensortap.seam.options import TraceLevel
from tests.jax_engine.following import followed, text_of
from tests.jax_engine.planted import PLANTS, sgd
from tests.sink.peers import free_port

SLOW = bool(os.environ.get("TENSORTAP_SLOW_TESTS"))
FEW = ("where_leak", "nested_scans", "donated_state", "flax_nnx", "eager_operation", "bad_batch")


class TestChecksOfJax:
    @pytest.mark.parametrize("name", PLANTS if SLOW else FEW)
    def test_a_plant_is_answered_although_jax_raises(self, name, tmp_path):
        plant = PLANTS[name]
        raised = []

        def program():
            with jax.debug_nans(True), jax.debug_infs(True):
                try:
                    plant.program()
                except (FloatingPointError, InternalFloatingPointError, RecursionError) as error:
                    raised.append(error)

        _, report, _ = followed(program, tmp_path / "root")
        found = report.first_bad
        assert raised or name == "in_another_thread"
        assert plant.cause in found.cause.kind
        assert found.step == plant.step or (plant.step == 0 and found.step == -1)
        assert plant.iteration in (found.during or "")
        if name == "bad_batch":  # JAX does not even let it in
            assert (found.node.op_type, text_of(found.source).strip()) == (
                "Const",
                "yield jnp.asarray(batch)",
            )
        else:
            assert found.node.op_type == plant.op
            assert text_of(found.source).rstrip().endswith("# BUG")

    def test_they_raise_when_every_step_is_watched_too(self, tmp_path):
        def program():
            with jax.debug_nans(True), pytest.raises(FloatingPointError):
                jax.jit(lambda x: jnp.sqrt(x - 2))(jnp.ones(3))

        _, report, _ = followed(program, tmp_path / "root", every=1)
        assert report.first_bad.node.op_type == "sqrt"


class TestNarrowing:
    """The first call returns NaN; which of those that follow do is chosen by a function on the host."""

    @pytest.mark.parametrize(
        ("bad_calls", "op", "kind"),
        [
            ({1, 3, 4}, "pure_callback", "unknown"),  # with taps nothing is bad, op by op something is
            ({1, 4}, "executable", "only-compiled"),
            ({1}, "executable", "not-repeated"),
        ],
    )
    def test_what_taps_do_not_show(self, bad_calls, op, kind, tmp_path, caplog):
        calls = []

        def on_host(x):
            calls.append(len(calls))
            return np.where(len(calls) in bad_calls, np.float32(np.nan), x).astype(np.float32)

        @jax.jit
        def evaluate(x):
            y = jax.pure_callback(on_host, jax.ShapeDtypeStruct((4,), jnp.float32), x)
            total, _ = jax.lax.scan(lambda c, each: (c + jnp.sin(each), c), 0.0, y)
            _, last = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * y), (0, y))
            return total, jax.lax.cond(y[0] > 0, jnp.sin, jnp.cos, last)

        _, report, _ = followed(lambda: evaluate(jnp.arange(4.0)), tmp_path / "root")
        assert report.first_bad.node.op_type == op
        assert report.first_bad.cause.kind == kind
        assert "Executed once more, with taps, it did not" in caplog.text


class TestDonation:
    def test_without_copies_the_call_is_told_and_what_would_name_the_operation(self, tmp_path):
        def program():
            params = {"w": jnp.ones(3), "b": jnp.ones(2)}
            step = sgd(lambda p, x: jnp.log(x * p["w"]).sum() + p["b"].sum(), 0.1, donate_argnums=0)
            for index in range(4):
                given = params
                params, loss = step(params, jnp.ones((2, 3)).at[0, 0].set(index != 2))  # THE CALL
                assert given["w"].is_deleted()
            return loss

        loss, report, _ = followed(program, tmp_path / "root", copy_donated=False)
        found = report.first_bad
        assert np.isnan(loss)
        assert (found.step, found.cause.kind) == (2, "arguments-donated")
        assert text_of(found.source).rstrip().endswith("# THE CALL")
        assert found.node.name == "train_step/result/0/w"
        assert "in 2 of 3 results" in found.cause.sentence  # the loss is -inf, the gradient of b is good
        assert "without --no-copies" in found.cause.advice

    @pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
    def test_what_could_not_be_reused_is_executed_again_all_the_same(self, tmp_path):
        @functools.partial(jax.jit, donate_argnums=0)
        def total(x):  # of another shape: XLA has no use for the memory of x
            return jnp.log(x).sum()

        _, report, _ = followed(
            lambda: [total(jnp.ones(3).at[0].set(n - 1.0)) for n in range(3)],
            tmp_path / "root",
            copy_donated=False,
        )
        assert report.first_bad.node.op_type == "log"

    def test_every_run_watched_keeps_its_arguments_and_says_so(self, tmp_path, caplog):
        with caplog.at_level(logging.WARNING):
            followed(lambda: jnp.ones(3).sum(), tmp_path / "root", copy_donated=False, every=1)
        assert "--no-copies has no effect" in caplog.text


class TestCounting:
    def test_batches_of_several_shapes_are_steps_of_one_function(self, tmp_path):
        def program():
            step = sgd(lambda p, x: (x * p["w"]).sum(), 0.1)
            params = {"w": jnp.ones(3)}
            for length in (2, 5, 2, 5, 5, 2):
                params, _ = step(params, jnp.ones((length, 3)))

        _, _, seen = followed(program, tmp_path / "root")
        assert seen.steps == 6

    @pytest.mark.parametrize(
        ("option", "given"), [("--budget", {"budget": 1.1}), ("--skip-bad", {"skip_bad": True})]
    )
    def test_options_without_effect_say_what_helps(self, option, given, tmp_path, caplog):
        with caplog.at_level(logging.WARNING):
            followed(lambda: jnp.ones(3).sum(), tmp_path / "root", **given)
        said = next(each.message for each in caplog.records if each.message.startswith(option))
        assert ("no run is left out" if option == "--budget" else "optax.apply_if_finite") in said

    def test_a_program_that_only_imports_jax_hears_nothing_of_it(self, tmp_path, caplog):
        with caplog.at_level(logging.WARNING):
            followed(lambda: None, tmp_path / "root", budget=1.1, skip_bad=True)
        assert not caplog.records


class TestProfiler:
    @pytest.fixture
    def step(self):
        @jax.jit
        def step(state, x):
            def loss_of(w):
                h = jnp.tanh(x @ w)
                return jax.lax.scan(lambda c, row: (jnp.sin(c) + row.sum(), c), 0.0, h)[0]

            loss, g = jax.value_and_grad(loss_of)(state["w"])
            return {"w": state["w"] - 0.1 * g}, {"loss": loss}

        return step

    @pytest.fixture
    def session(self, step):
        return tt.jax.Session(step, {"w": jnp.full((64, 64), 0.01)})

    def test_executed_instructions_have_the_names_and_lines_of_nodes(self, session, tmp_path):
        x = jnp.ones((16, 64))
        with tt.MonitoredSession(
            session, hooks=[tt.ProfilerHook(save_steps=2, output_dir=tmp_path)]
        ) as monitored:
            for _ in range(5):
                monitored.run("loss", {"x": x})
        assert sorted(each.name for each in tmp_path.glob("*.json")) == ["timeline-2.json", "timeline-4.json"]
        metadata = tt.RunMetadata()
        session.reopen()
        session.run("loss", {"x": x}, tt.RunOptions(trace_level=TraceLevel.FULL_TRACE), metadata)
        facts = metadata.profile.facts
        names = {
            each.node_name for device in metadata.profile.step_stats.dev_stats for each in device.node_stats
        }
        assert "dot_general" in names
        assert facts.ops["dot_general"].source_file == __file__
        phases = {each.phase for each in facts.ops.values()}
        assert {"forward", "backward"} <= phases
        assert "dot_general" in Timeline(metadata.profile.step_stats).generate_chrome_trace_format()

    def test_profiled_runs_change_nothing(self, step, session):
        plain = tt.jax.Session(step, session.state)
        x = jnp.ones((16, 64))
        traced = tt.RunOptions(trace_level=TraceLevel.FULL_TRACE)
        assert [session.run("loss", {"x": x}, traced) for _ in range(3)] == [
            plain.run("loss", {"x": x}) for _ in range(3)
        ]


class TestDevices:
    def test_tensors_that_are_spread_are_whole(self):
        mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
        w = jax.device_put(jnp.arange(32.0).reshape(8, 4), NamedSharding(mesh, P(None, "b")))
        x = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("a")))

        @jax.jit
        def step(state, x):
            h = jnp.sin(x @ state["w"])
            return state, {"total": jax.lax.cond(h.sum() > 0, jnp.sin, jnp.cos, h).sum()}

        session = tt.jax.Session(step, {"w": w})
        total, hidden = session.run(["total", "sin:0"], {"x": x})
        assert np.allclose(hidden, np.sin(np.ones((8, 8)) @ np.arange(32.0).reshape(8, 4)), atol=1e-4)
        assert session.run("total", {"x": x, "sin:0": np.zeros((8, 4), "f4")}) == pytest.approx(32.0)
        assert np.isfinite(total)

    def test_health_of_spread_tensors_counts_every_element_once(self, tmp_path):
        mesh = Mesh(np.array(jax.devices()[:4]), ("a",))
        x = jax.device_put(jnp.ones((8, 3)).at[5, 1].set(-1.0), NamedSharding(mesh, P("a")))
        session = tt.jax.Session(jax.jit(lambda x: {"loss": jnp.log(x).sum() + jnp.ones(4).sum()}))
        root = tmp_path / "root"
        with tt.DumpingDebugWrapperSession(
            session, root, watch_fn=tt.WatchOptions("DebugNumericSummary")
        ) as wrapped:
            wrapped.run(None, {"x": x})
        pill = SessionDir(root).run(0).get_tensors("log", 0, "DebugNumericSummary")[0]
        assert (pill[1], pill[2]) == (24, 1)

    def test_where_jax_takes_no_taps_a_line_says_so(self, tmp_path, caplog):
        mesh = jax.make_mesh(
            (2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:4]
        )

        @jax.jit
        def evaluate(x):
            logs = jax.shard_map(jnp.log, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})(x)
            return logs.sum()  # FIRST OUTSIDE

        def program():
            with jax.set_mesh(mesh):
                for last in (1.0, 1.0, 0.0):
                    x = np.ones((4, 4), np.float32)
                    x[3, 3] = last
                    evaluate(jax.device_put(x, NamedSharding(mesh, P("a", "b"))))

        _, report, _ = followed(program, tmp_path / "root")
        assert text_of(report.first_bad.source).rstrip().endswith("# FIRST OUTSIDE")
        assert "evaluate takes no taps" in caplog.text
        assert "Traceback" not in caplog.text


DISTRIBUTED = """
    import os, jax, numpy as np, jax.numpy as jnp
    rank = int(os.environ["JAX_PROCESS_ID"])
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], 2, rank)
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()), ("d",))

    def spread(array, spec):
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])

    @jax.jit
    def train_step(params, x):
        loss, g = jax.value_and_grad(lambda p: jnp.log(x * p["w"]).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.0 * g, params, g), loss

    params = {"w": spread(np.ones(3, np.float32), P())}
    for index in range(6):
        x = np.ones((4, 3), np.float32)
        x[3, 0] = index != 2
        params, loss = train_step(params, spread(x, P("d")))
    print("over", rank)
"""


def test_two_processes_stay_in_step_and_the_one_with_the_part_says_why(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(DISTRIBUTED))
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tensortap", "run", "-q", "-o", "runs", str(script)],
            cwd=tmp_path,
            env={
                **os.environ,
                "XLA_FLAGS": "",  # a device in each
                "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": str(rank),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [each.communicate(timeout=200)[0] for each in processes]
    finally:
        for each in processes:
            each.kill()
    assert [f"over {rank}" in text for rank, text in enumerate(said)] == [True, True], said
    found = search_session(SessionDir(tmp_path / "runs")).first_bad
    assert (found.node.op_type, found.step, found.rank, found.cause.kind) == ("log", 2, 1, "log-of-zero")


def test_the_persistent_cache_of_compiled_code_is_used(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import jax, jax.numpy as jnp
        jax.config.update("jax_compilation_cache_dir", "cache")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        step = jax.jit(lambda w, x: (w - 0.1 * jnp.tanh(x @ w), (x @ w).sum()))
        w = jnp.ones((8, 8))
        for _ in range(4):
            w, loss = step(w, jnp.ones((8, 8)))
        print(w.sum(), loss)
        """)
    )
    plain, watched = (
        [sys.executable, str(script)],
        [sys.executable, "-m", "tensortap", "run", "-q", str(script)],
    )
    said = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200).stdout
        for command in (plain, watched, plain)
    ]
    assert len(set(said)) == 1
    assert said[0].strip()
    assert any(each.name.startswith("jit__lambda") for each in (tmp_path / "cache").iterdir())
