"""The commands that look into a session, as a user types them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.commands import COMMANDS, main, parser_of
from tests.analyze.planted import HEALTHY, PLANTS, train
from tests.patience import patient

BY_NAME = {case.name: case for case in (*PLANTS, *HEALTHY)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("looking")


@pytest.fixture(scope="module")
def bad(root):
    """Three runs with values; the second one is fed a NaN, so that the third has bad parameters."""
    return train(BY_NAME["bad_batch"], root / "bad", ["DebugNumericSummary", "DebugIdentity"])


@pytest.fixture(scope="module")
def backward(root):
    return train(BY_NAME["where_and_sqrt_of_zero"], root / "backward")


@pytest.fixture(scope="module")
def healthy(root):
    return train(BY_NAME["masked_attention"], root / "healthy")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def run_json(run):
    def call(*arguments):
        code, out, _ = run(*arguments, "--json")
        return code, json.loads(out)

    return call


# --- why


def test_why_answers_first(run, backward):
    code, out, _ = run("why", backward, "--wide")
    assert code == 1
    lines = out.splitlines()
    assert lines[0] == "✗ first bad value  NaN at step 0"
    assert lines[2].split() == ["node", "gradients/model/sqrt/div", "aten::div"]
    assert "root = torch.sqrt(h)  # here" in out
    assert "cause    The gradient of sqrt is infinite at 0" in out
    assert f"tensortap node {backward} gradients/model/sqrt/div -r 0" in out
    assert "\x1b" not in out


def test_why_for_scripts(run_json, backward):
    code, report = run_json("why", backward)
    assert code == 1
    first = report["first_bad"]
    assert {key: first[key] for key in ("run", "step", "rank", "node", "op_type", "phase", "module")} == {
        "run": 0,
        "step": 0,
        "rank": 0,
        "node": "gradients/model/sqrt/div",
        "op_type": "aten::div",
        "phase": "backward",
        "module": "model",
    }
    assert first["source"]["file"].endswith("planted.py")
    assert first["source"]["line"] == BY_NAME["where_and_sqrt_of_zero"].line
    assert first["source"]["text"] == "root = torch.sqrt(h)  # here"
    assert first["cause"].startswith("The gradient of sqrt is infinite at 0")
    assert [each["tensor"] for each in first["inputs"]] == [
        "gradients/model/where/where:0",
        "gradients/model/sqrt/mul:0",
    ]
    assert all(each["health"]["status"] == "good" for each in first["inputs"])
    assert first["output"]["health"]["nan"] == 30
    assert "gradients/model/first/weight:0" in report["propagators"]
    assert report["findings"][0] == first


def test_why_of_healthy_runs(run, run_json, healthy):
    code, out, err = run("why", healthy)
    assert (code, err) == (0, "")
    assert out.startswith("✓ healthy  no bad value in 3 runs")
    assert "put there on purpose" in out
    code, report = run_json("why", healthy)
    assert (code, report["first_bad"], report["propagators"]) == (0, None, [])


def test_why_of_one_run_traces_what_came_bad(run, run_json, bad):
    code, report = run_json("why", bad, "--run", 3)
    assert code == 1
    assert report["first_bad"]["phase"] == "parameter"
    assert report["first_bad"]["origin"]["run"] == 2
    assert report["first_bad"]["origin"]["node"] == "x"
    assert run("why", bad, "--run", 0)[0] == 0
    path = sorted(bad.glob("run_*"))[2]
    code, out, _ = run("why", path, "--wide")
    assert code == 1
    assert "node     x  Placeholder" in out
    assert f"tensortap node {path} x\n" in out


def test_why_with_a_filter_and_without_some_nodes(run, run_json, bad):
    code, report = run_json("why", bad, "--filter", "magnitude > 2 and rank == 2")
    assert (code, report["first_bad"]["node"], report["first_bad"]["run"]) == (1, "x", 0)
    assert run("why", bad, "--exclude", ".")[0] == 0


def test_why_does_not_call_healthy_what_nobody_looked_at(run, tmp_path):
    hashes = train(BY_NAME["masked_attention"], tmp_path / "hashes", ["DebugHash"])
    for directory in (hashes, next(hashes.glob("run_*"))):
        code, out, err = run("why", directory)
        assert (code, out) == (2, "")
        assert "watch with the debug op DebugNumericSummary" in err
    muted = train(
        BY_NAME["logarithmic_buckets"], tmp_path / "muted", ["DebugNumericSummary(mute_if_healthy=true)"]
    )
    assert run("why", muted)[0] == 0


@pytest.mark.parametrize("columns", ["80", "200"])
def test_sentences_fit_the_terminal(run, bad, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run("why", bad)
    assert max(
        len(line) for line in out.splitlines() if "tensortap " not in line and str(bad) not in line
    ) <= int(columns)


def test_colour_only_where_somebody_looks(run, bad, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("why", bad)[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("why", bad)[1]


def test_a_terminal_without_unicode_gets_plain_characters(bad):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "tensortap.commands", "why", bad], capture_output=True, env=environment
    )
    assert done.returncode == 1
    assert done.stdout.startswith(b"x first bad value")


# --- the others


def test_health_of_runs_and_tensors(run, run_json, bad):
    _, out, _ = run("health", bad)
    assert out.splitlines()[0].split() == [
        *("run", "step", "tensors", "nan", "inf", "loss"),
        *("grad", "norm", "weights", "largest"),
    ]
    _, found = run_json("health", bad)
    runs = found["runs"]
    assert [each["nan"] > 0 for each in runs] == [False, False, True, True]
    assert runs[0]["loss"] == pytest.approx(0.164, abs=1e-3)
    assert runs[0]["gradients"] > 0
    assert runs[2]["loss"] == "nan"
    _, found = run_json("health", bad, "--run", 0, "-n", "gradients", "-s", "magnitude")
    sizes = [max(abs(each["health"]["min"]), abs(each["health"]["max"])) for each in found["tensors"]]
    assert sizes == sorted(sizes, reverse=True)
    assert "model/first/addmm:0" in run("health", bad, "-r", 0)[1]


def test_health_follows_a_growing_directory_until_it_is_interrupted(tmp_path):
    target = tmp_path / "growing"
    command = [
        sys.executable,
        "-m",
        "tensortap.commands",
        "health",
        "--follow",
        "--every",
        "0.05",
        "--json",
        str(target),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        assert "Waiting" in follower.stderr.readline()
        train(BY_NAME["bad_batch"], target)
        rows = [json.loads(follower.stdout.readline()) for _ in range(4)]
        follower.send_signal(signal.SIGINT)
        assert follower.wait(patient(10)) == 0
        assert follower.stderr.read() == ""
    assert [row["run"] for row in rows] == [0, 1, 2, 3]
    assert [row["nan"] > 0 for row in rows] == [False, False, True, True]


def test_node(run, run_json, bad):
    _, out, _ = run("node", bad, "model/first/addmm:0", "-r", 0)
    assert "model/first/addmm  aten::addmm" in out
    assert "return self.last(self.between(self.first(x)))" in out
    assert "x:0" in out
    assert "not recorded" not in out
    _, found = run_json("node", bad, "model/tanh", "-r", 2)
    assert found["inputs"] == [{"tensor": "model/first/addmm:0", "health": found["inputs"][0]["health"]}]
    assert found["outputs"][0]["health"]["nan"] == 8
    assert "model/last/addmm" in found["recipients"]
    _, whole, _ = run("node", bad, "model/tanh", "-r", 0, "--traceback")
    assert whole.count("planted.py:") > out.count("planted.py:")


def test_inputs_and_outputs(run, run_json, bad):
    _, out, _ = run("inputs", bad, "model/last/addmm", "-r", 0, "-d", 3)
    assert "├─ model/last/bias:0  Variable  good" in out
    assert "│  └─ model/first/addmm:0  aten::addmm  good" in out
    _, found = run_json("inputs", bad, "mean", "-r", 0, "-R")
    assert "x:0" in {each["tensor"] for each in found["tree"]}
    _, found = run_json("outputs", bad, "model/tanh", "-r", 2, "--to", "mean")
    assert found["path"] == ["model/tanh", "model/last/addmm", "pow", "mean"]
    code, found = run_json("inputs", bad, "x", "-r", 2, "--from", "mean")
    assert (code, found["path"]) == (1, None)
    _, found = run_json("outputs", bad, "x", "-r", 2, "-d", 20, "--bad")
    assert all(each["health"] is None or each["health"]["status"] == "bad" for each in found["tree"])


def test_source(run, run_json, backward):
    _, files = run_json("source", backward)
    assert [os.path.basename(each["file"]) for each in files] == ["planted.py"]
    line = BY_NAME["where_and_sqrt_of_zero"].line
    _, out, _ = run("source", backward, "planted.py", "-r", 0)
    assert any(text.startswith("✗") and f" {line} " in text for text in out.splitlines())
    _, found = run_json("source", backward, f"planted.py:{line}", "-r", 0)
    assert {each["node"] for each in found["nodes"]} >= {"model/sqrt", "gradients/model/sqrt/div"}
    code, _, err = run("source", backward, "planted.py:1")
    assert code == 2
    assert "made no node" in err


def test_eval(run, run_json, bad, tmp_path):
    _, found = run_json("eval", bad, "np.isnan(`x:0`).sum()", "-r", 2)
    assert found["value"] == 1
    assert run("eval", bad, "`x:0`[3, 1]", "-r", 2)[1] == "nan\n"
    _, out, _ = run("eval", bad, "`x:0:DebugNumericSummary`[2]", "-r", 2)
    assert float(out) == 1
    target = tmp_path / "out.npy"
    run("eval", bad, "`model/tanh:0`.T", "-r", 0, "-o", target)
    assert np.load(target).shape == (8, 6)


def test_history(run, run_json, bad):
    _, found = run_json("history", bad, "model/last/weight:0")
    assert [row["run"] for row in found["runs"]] == [0, 1, 2, 3]
    assert [row["nan"] > 0 for row in found["runs"]] == [False, False, False, True]
    _, out, _ = run("history", bad, "model/last/weight", "-n", 2)
    assert out.splitlines()[0] == "model/last/weight:0  2 runs, 1 bad"


def test_find(run, run_json, bad):
    code, found = run_json("find", bad, "--first", 1)
    assert (code, found[0]["tensor"], found[0]["run"]) == (0, "x:0", 2)
    _, found = run_json("find", bad, "true", "--op", "tanh$", "--dtype", "float32")
    assert [each["run"] for each in found] == [0, 1, 2, 3]
    code, out, _ = run("find", bad, "max > 1e30")
    assert (code, out) == (1, "Nothing was found.\n")


def test_diff(run, run_json, bad, root):
    again = train(BY_NAME["bad_batch"], root / "again")
    code, out, _ = run("diff", bad, again)
    assert code == 0
    assert out.startswith("✓ same  4 runs")
    each = [run_json("diff", bad, again, "-r", number)[1]["compared"] for number in range(4)]
    _, found = run_json("diff", bad, again)
    assert (found["is_same"], found["compared"]) == (True, sum(each))
    assert min(each) > 1
    code, found = run_json("diff", bad, "-r", 0, "--other-run", 1)
    assert (code, found["first"]["left"], found["first"]["basis"]) == (1, "model/first/weight:0", "value")
    code, out, _ = run("diff", bad, "-r", 1, "--other-run", 2)
    assert code == 1
    assert "✗ different" in out


def test_doctor_tries_what_it_says(run_json):
    code, found = run_json("doctor")
    assert code == 0
    checks = {each["name"]: each for each in found["checks"]}
    assert checks["torch"]["status"] == "good"
    assert "backward" in checks["torch: trial step"]["text"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run, shell):
    code, out, _ = run("completion", shell)
    assert code == 0
    assert all(name in out for name in COMMANDS)
    if shell == "bash":
        script = f"{out}\nCOMP_WORDS=(tensortap why --exc); COMP_CWORD=2; _tensortap; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "--exclude"


def test_mistakes_are_one_line_with_the_fix(run, bad, healthy, tmp_path):
    for arguments, words in [
        (("why", tmp_path), "There is no run"),
        (("why", bad, "--exclude", "("), "no regular expression"),
        (("why", bad, "--filter", "magnitud > 3"), "Did you mean 'magnitude'"),
        (("why", bad, "--run", 99), "There is no run 99"),
        (("node", bad, "model/tanhh"), "Did you mean 'model/tanh'"),
        (("inputs", bad, "nothing_like_it"), "There is no node"),
        (("show", bad, "addmm"), "Did you mean 'model/last/addmm:0'"),
        (("show", bad, "addm"), "Names that contain it: 'gradients/model/first/addmm/mm:0'"),
        (("show", bad, "zzz"), "tensortap ls"),
        (("history", bad, "model/tanh:1"), "Did you mean 'model/tanh:0'"),
        (("history", next(bad.glob("run_*")), "x:0"), "single run"),
        (("source", bad, "other.py"), "There are planted.py"),
        (("eval", bad, "`x:0` +"), "no expression"),
        (("eval", bad, "`y:0`"), "has no tensor"),
        (("eval", healthy, "`x:0`"), "was not recorded, only DebugNumericSummary"),
        (("eval", bad, "`x:0[7]`"), "no execution 7"),
        (("diff", healthy), "No run is bad; name two with --run"),
        (("diff", bad, healthy, "--run", 50), "There is no run 50"),
        (("find", bad, "max >"), "no expression"),
        (("inputs", bad, "x", "-d", 0), "--depth"),
    ]:
        code, _, err = run(*arguments)
        assert code == 2, arguments
        assert words in err, (arguments, err)
        assert err.count("\n") == 1, err


def test_what_the_last_run_does_not_have_is_found_in_another(run, tmp_path):
    """The last run of a program is often an evaluation; asking about the step before must not lead astray."""
    model = torch.nn.Linear(3, 2)
    hook = tt.DumpingDebugHook(tmp_path, lambda fetches, feeds: tt.WatchOptions("DebugNumericSummary"))
    with tt.torch.monitor(model, hooks=[hook]) as m:
        for train in (True, True, False):
            with m.run():
                y = model(torch.ones(4, 3))
                if train:
                    y.exp().mean()
    for command, thing in (
        ("show", "exp:0"),
        ("eval", "`exp:0`"),
        ("node", "exp"),
        ("inputs", "exp"),
        ("outputs", "exp"),
    ):
        code, _, err = run(command, tmp_path, thing)
        if command == "eval":  # only its health was recorded
            assert (code, "was not recorded, only DebugNumericSummary" in err) == (2, True)
        else:
            assert (code, err) == (0, f"note: Run 1, the last with {thing}; -r N shows another.\n")
        code, _, err = run(command, tmp_path, thing, "-r", 2)  # whoever names a run means it
        assert code == 2
        assert "There is no node 'exp' in this run." in err or "Run 2 has no tensor 'exp:0'" in err
    code, _, err = run("source", tmp_path, "test_looking.py:1")
    assert "Line 1 made no node in run 2; " in err
    assert run("history", tmp_path, "model/addmm:0")[1].startswith("model/addmm:0  3 runs, 0 bad\n")


def test_a_line_of_a_package_comes_with_the_line_of_the_program_that_led_there(run, tmp_path, monkeypatch):
    package = tmp_path / "lib" / "site-packages" / "zoo_of_models"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import torch\n\ndef activation(x):\n    return torch.log(x - x)\n")
    monkeypatch.syspath_prepend(package.parent)
    from zoo_of_models import activation

    model = torch.nn.Linear(3, 2)
    hook = tt.DumpingDebugHook(
        tmp_path / "dumps", lambda fetches, feeds: tt.WatchOptions("DebugNumericSummary")
    )
    with tt.torch.monitor(model, hooks=[hook]) as m, m.run():
        activation(model(torch.ones(4, 3))).mean().backward()
    out = run("why", tmp_path / "dumps")[1]
    lines = [line.split() for line in out.splitlines()]
    assert ["line", "zoo_of_models/__init__.py:4", "in", "activation"] in lines
    (caller,) = [line for line in lines if line[:1] == ["from"]]
    assert re.fullmatch(r".*test_looking\.py:\d+", caller[1])
    assert "  from  " not in run("why", tmp_path / "dumps", "--json")[1]


def test_diff_lists_some_of_many_inputs(run, tmp_path):
    watch = tt.WatchOptions("DebugNumericSummary")
    for name, first in (("a", 0), ("b", 20)):
        model = torch.nn.Linear(1, 1)
        hook = tt.DumpingDebugHook(tmp_path / name, lambda fetches, feeds: watch)
        with tt.torch.monitor(model, hooks=[hook]) as m, m.run():
            data = torch.arange(80.0)
            torch.stack([data[first + i] for i in range(20)])
    code, out, _ = run("diff", tmp_path / "a", tmp_path / "b", "-n", 1)
    assert code == 1
    assert "first    stack:0" in out
    assert out.count("not compared") == 6
    assert "and 14 more" in out


def test_unknown_commands_are_suggested(run):
    assert run("wyh") == (2, "", "tensortap: There is no command 'wyh'. Did you mean 'why'?\n")
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "which operation made the first bad value" in err


def test_every_command_has_help_with_examples_that_fit():
    parser = parser_of()
    choices = next(action.choices for action in parser._actions if action.choices)
    for name in ("why", "health", "node", "inputs", "outputs", "source", "eval", "diff", "history", "find"):
        text = choices[name].description
        assert f"  tensortap {name} " in text
        assert max(map(len, text.splitlines())) <= 80, name


def test_looking_imports_no_framework_and_no_more_than_it_needs(bad):
    commands = [
        ["why", bad],
        ["health", bad],
        ["node", bad, "x"],
        ["history", bad, "x:0"],
        ["diff", bad, bad],
    ]
    program = (
        "import json, sys; from tensortap.commands import main\n"
        "for command in json.loads(sys.argv[1]): main(command)\n"
        "print([name for name in ('torch', 'tensorflow', 'jax', 'rich', 'grpc') if name in sys.modules])"
    )
    listed = json.dumps([[str(part) for part in command] for command in commands])
    done = subprocess.run([sys.executable, "-c", program, listed], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == "note: Run 2, the first bad one; -r N shows another.\n"


def test_the_answer_comes_quickly(bad):
    """Measured in time of the processor, so that other programs cannot make it fail."""
    program = (
        "import os, sys; from tensortap.commands import main; main(sys.argv[1:]); print(os.times().user)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "why", bad], capture_output=True, text=True, check=True
    )
    assert float(done.stdout.splitlines()[-1]) < 1.0
