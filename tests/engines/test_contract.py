"""What every engine offers through the seam: sessions, hooks, dumping, streaming, the answer, the commands."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import tensortap as tt
from tensortap.commands import main
from tensortap.debug.dumping import DumpingDebugWrapperSession
from tensortap.reader import has_inf_or_nan
from tensortap.reader.session_dir import SessionDir
from tensortap.server.debug_server import DebugServer

HEALTH = tt.WatchOptions("DebugNumericSummary", keep_bad=4)


def values_of(dump):
    return {datum.watch_key: datum.get_tensor().tolist() for datum in dump.dumped_tensor_data}


class TestSessions:
    def test_a_run_without_fetches_returns_what_the_step_returns(self, program):
        result = program.session.run(None, {"x": program.x})
        assert result["loss"].item() == pytest.approx(math.log(3))
        assert program.session.global_step == 1

    def test_keys_names_and_state_in_any_structure(self, program):
        fetches = {"loss": "loss", "rest": [f"{program.hidden}:0", ("model/weight:0", "global_step:0")]}
        found = program.session.run(fetches, {"x": program.x})
        assert found["loss"] == pytest.approx(math.log(3))
        np.testing.assert_array_equal(found["rest"][0], np.full((4, 2), 3.0))
        np.testing.assert_array_equal(found["rest"][1][0], np.full((3, 2), 0.75))
        assert found["rest"][1][1] == 0

    def test_state_is_read_without_running_the_step(self, program):
        np.testing.assert_array_equal(program.session.run("model/weight:0"), np.ones((3, 2)))
        assert program.session.global_step == 0

    def test_what_is_fetched_is_a_copy(self, program):
        program.session.run("model/weight:0")[...] = 9
        np.testing.assert_array_equal(program.session.run("model/weight:0"), np.ones((3, 2)))

    def test_a_fed_tensor_replaces_the_value_for_the_rest_of_the_run(self, program):
        fed = {"x": program.x, f"{program.hidden}:0": np.full((4, 2), math.e)}
        assert program.session.run("loss", fed) == pytest.approx(1.0)
        with pytest.raises(tt.errors.FeedError, match="shape"):
            program.session.run("loss", {**fed, f"{program.hidden}:0": np.ones(3)})

    def test_fed_state_is_put_back(self, program):
        loss = program.session.run("loss", {"x": program.x, "model/weight:0": np.full((3, 2), 2.0)})
        assert loss == pytest.approx(math.log(6))
        np.testing.assert_array_equal(program.session.run("model/weight:0"), np.ones((3, 2)))

    def test_an_unknown_name_suggests_the_nearest(self, program):
        program.session.run(f"{program.hidden}:0", {"x": program.x})
        with pytest.raises(tt.errors.UnknownTensorError, match=program.hidden):
            program.session.run(f"{program.hidden}x:0", {"x": program.x})

    def test_a_missing_input_is_named(self, program):
        with pytest.raises(tt.errors.FeedError, match="'x'"):
            program.session.run("loss")

    def test_derived_nodes(self, program):
        program.session.graph.add_derived("spread", lambda h: h.max() - h.min(), [f"{program.hidden}:0"])
        assert program.session.run("spread:0", {"x": program.x}) == 0

    def test_a_failing_op_is_named_with_its_line(self, program):
        with pytest.raises(tt.errors.InvalidArgumentError, match=r"conftest\.py") as failed:
            program.session.run(f"{program.log}:0", {"x": program.array(np.ones((4, 5)))})
        assert failed.value.node is not None
        assert failed.value.node.name == program.hidden

    def test_taps_see_every_tensor_with_its_line(self, program):
        seen = {}
        options = tt.RunOptions(taps=[lambda node, slot, tensor: seen.setdefault(node.tensor(slot), node)])
        program.session.run(None, {"x": program.x}, options)
        assert {"x:0", "model/weight:0", f"{program.hidden}:0", "log:0", f"{program.mean}:0"} <= set(seen)
        assert seen["log:0"].source.file.endswith("conftest.py")

    def test_a_closed_session_refuses(self, program):
        program.session.close()
        with pytest.raises(tt.errors.SessionClosedError):
            program.session.run(None, {"x": program.x})


class TestHooks:
    def test_a_monitored_session_trains_saves_and_restores(self, make_program, tmp_path):
        program = make_program(4.0)
        hooks = [tt.StopAtStepHook(last_step=3), tt.CheckpointSaverHook(tmp_path, save_steps=1)]
        with tt.MonitoredSession(program.session, hooks=hooks) as session:
            while not session.should_stop():
                session.run("loss", {"x": program.x})
        again = make_program(9.0)
        with tt.MonitoredTrainingSession(checkpoint_dir=tmp_path, session=again.session) as session:
            np.testing.assert_array_equal(session.run("model/weight:0"), np.full((3, 2), 3.25))
            assert session.run("global_step:0") == 3

    def test_a_checkpoint_with_nan_is_refused(self, make_program, tmp_path):
        program = make_program(math.nan)
        hook = tt.CheckpointSaverHook(tmp_path, save_steps=1, non_finite="skip")
        with tt.MonitoredSession(program.session, hooks=[hook]) as session:
            session.run(None, {"x": program.x})
        assert tt.latest_checkpoint(tmp_path) is None

    def test_a_nan_loss_stops_the_loop(self, make_program):
        program = make_program(-1.0)
        hook = tt.NanTensorHook("loss", fail_on_nan_loss=True)
        with (
            pytest.raises(tt.errors.NanLossDuringTrainingError),
            tt.MonitoredSession(program.session, hooks=[hook]) as session,
        ):
            session.run("loss", {"x": program.x})

    def test_a_loop_of_ones_own(self, program):
        if program.monitor is None:
            pytest.skip("the framework's session owns its runs")
        hook = tt.StopAtStepHook(last_step=2)
        with program.monitor([hook]) as monitor:
            while not monitor.should_stop():
                with monitor.run(f"{program.hidden}:0") as run:
                    program.step(program.x)
        np.testing.assert_array_equal(run.results, np.full((4, 2), 2.25))


class TestWatches:
    def test_only_what_is_asked_for_is_recorded(self, program, tmp_path):
        watch = tt.WatchOptions("DebugNumericSummary", node_name_regex_allowlist=f"^{program.log}$")
        with DumpingDebugWrapperSession(program.session, tmp_path / "root", watch) as session:
            for _ in range(2):
                session.run(None, {"x": program.x})
        for run in range(2):
            assert list(values_of(SessionDir(tmp_path / "root").run(run))) == [
                f"{program.log}:0:DebugNumericSummary"
            ]

    def test_a_watch_that_matches_nothing_is_told_with_the_nearest_name(self, program, tmp_path, caplog):
        watch = tt.WatchOptions(node_name_regex_allowlist=f"^{program.log}x$")
        with DumpingDebugWrapperSession(program.session, tmp_path / "root", watch) as session:
            session.run(None, {"x": program.x})
        assert f"{program.log}x" in caplog.text
        assert "matched" in caplog.text

    def test_the_reader_finds_what_is_infinite(self, make_program, tmp_path):
        program = make_program(0.0)
        with DumpingDebugWrapperSession(program.session, tmp_path / "root") as session:
            session.run(None, {"x": program.x})
        found = [each.node_name for each in SessionDir(tmp_path / "root").run(0).find(has_inf_or_nan)]
        assert found[0] == program.log
        assert program.mean in found


class TestRecords:
    def test_every_value_is_dumped(self, program, tmp_path):
        with DumpingDebugWrapperSession(program.session, tmp_path / "root") as session:
            session.run(None, {"x": program.x})
        dump = SessionDir(tmp_path / "root").run(0)
        np.testing.assert_array_equal(
            dump.get_tensors(program.hidden, 0, "DebugIdentity")[0], np.full((4, 2), 3.0)
        )
        assert dump.node_inputs(program.log) == [program.hidden]

    def test_the_answer_names_the_op_its_line_and_its_step(self, make_program, tmp_path, capsys):
        program = make_program(0.5)  # 0.5, 0.25, 0: the third logarithm is infinite
        root = tmp_path / "root"
        hook = tt.DumpingDebugHook(root, lambda fetches, feeds: HEALTH)
        with tt.MonitoredSession(program.session, hooks=[hook]) as session:
            for _ in range(3):
                session.run(None, {"x": program.x})
        assert main(["why", str(root), "--json"]) == 1
        answer = json.loads(capsys.readouterr().out)["first_bad"]
        assert answer["node"] == program.log
        assert answer["step"] == 2
        assert answer["source"]["file"].endswith("conftest.py")

    def test_commands_read_it(self, program, tmp_path, capsys):
        with DumpingDebugWrapperSession(program.session, tmp_path / "root") as session:
            session.run(None, {"x": program.x})
        for command in (["ls"], ["show", f"{program.hidden}:0"], ["node", program.log], ["health"]):
            name, *rest = command
            assert main([name, str(tmp_path / "root"), *rest]) == 0, capsys.readouterr()
            assert capsys.readouterr().out

    def test_what_is_streamed_is_what_a_dump_has(self, program, tmp_path):
        with DebugServer(tmp_path / "server", http_port=None) as server:
            hooks = [tt.GrpcDebugHook(server.address), tt.DumpingDebugHook(tmp_path / "dumps")]
            with tt.MonitoredSession(program.session, hooks=hooks) as session:
                session.run(None, {"x": program.x})
            (streamed,) = (SessionDir(path).run(0) for path in server.root.iterdir())
            dumped = SessionDir(tmp_path / "dumps").run(0)
        assert values_of(streamed) == values_of(dumped)
        assert streamed.nodes() == dumped.nodes()
