"""The `tensortap` command, as a user types it, on a session that a real training run dumped."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.analyze.numbers import summarize
from tensortap.analyze.slicing import parse_slices, split_slices
from tensortap.commands import COMMANDS, main
from tensortap.reader import SessionDir, has_inf_or_nan
from tests.store.sample import write_sample


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Three runs of a small model; in the last one the input holds an infinity."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("session") / "dumps"
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def step(x):
        return {"y": model(x)}

    ops = ["DebugIdentity", "DebugNumericSummary"]
    hook = tt.DumpingDebugHook(root, watch_fn=lambda fetches, feeds: tt.WatchOptions(debug_ops=ops))
    with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
        for value in (1.0, 2.0, float("inf")):
            session.run("y", {"x": torch.full((3, 4), value)})
    return root


def run(capsys, *arguments):
    code = main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_ls_lists_the_runs_of_a_session(dumps, capsys):
    code, out, _ = run(capsys, "ls", dumps)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == [
        "run",
        "task",
        "step",
        "started",
        "tensors",
        "size",
        "bad",
        "dropped",
        "status",
    ]
    assert len(lines) == 4
    assert lines[1].split()[0] == "0"
    assert lines[1].endswith("complete")


def test_ls_json_is_for_scripts(dumps, capsys):
    _, out, _ = run(capsys, "ls", dumps, "--json")
    runs = json.loads(out)["runs"]
    assert [each["step"] for each in runs] == [0, 1, 2]
    assert runs[0]["bad"] == 0
    assert runs[2]["bad"] > 0
    assert all(each["dropped"] == 0 for each in runs)


def test_ls_lists_the_tensors_of_a_run(dumps, capsys):
    _, out, _ = run(capsys, "ls", dumps, "--run", -1, "-n", "addmm", "--json")
    tensors = json.loads(out)["tensors"]
    assert {each["tensor"] for each in tensors} == {"model/0/addmm:0", "model/2/addmm:0"}
    assert all(each["op"] == "aten::addmm" for each in tensors)
    _, out, _ = run(capsys, "ls", dumps, "--run", -1, "--bad")
    assert "x:0" in out
    assert "12 +inf" in out
    assert "model/0/bias:0" not in out


@pytest.mark.parametrize("key", ["size", "name", "op", "time"])
def test_ls_sorts(dumps, capsys, key):
    code, out, _ = run(capsys, "ls", dumps, "--run", 0, "-s", key, "--json")
    tensors = json.loads(out)["tensors"]
    assert code == 0
    if key == "name":
        assert [each["tensor"] for each in tensors] == sorted(each["tensor"] for each in tensors)


def test_a_run_directory_can_be_named_itself(dumps, capsys):
    path = next(iter(sorted(dumps.glob("run_*"))))
    _, out, _ = run(capsys, "ls", path)
    assert "model/0/addmm:0" in out


def test_show_values_and_slices(dumps, capsys, tmp_path):
    _, out, _ = run(capsys, "show", dumps, "model/0/addmm:0", "--run", 0, "--json")
    shown = json.loads(out)
    value = np.array(shown["value"])
    assert value.shape == (3, 8)
    assert shown["op"] == "aten::addmm"
    assert "test_commands.py" in shown["line"]
    assert shown["summary"]["elements"] == 24
    _, out, _ = run(capsys, "show", dumps, "model/0/addmm:0[-1, ::2]", "--run", 0, "--json")
    np.testing.assert_array_equal(json.loads(out)["value"], value[-1, ::2])
    target = tmp_path / "value.npy"
    assert run(capsys, "show", dumps, "model/0/addmm:0", "--run", 0, "-o", target)[0] == 0
    np.testing.assert_array_equal(np.load(target), value.astype(np.float32))
    code, _, err = run(capsys, "show", dumps, "model/0/addmm:0", "-o", target)
    assert code == 2
    assert "--force" in err


def test_show_a_health_pill(dumps, capsys):
    _, out, _ = run(capsys, "show", dumps, "x:0", "--op", "DebugNumericSummary")
    assert "pos_inf" in out
    assert "12" in out


def test_mistakes_are_one_line_and_exit_code_2(dumps, capsys, tmp_path):
    for arguments, words in [
        (("ls", tmp_path / "nowhere"), "There is no directory"),
        (("ls", tmp_path), "There is no run"),
        (("ls", __file__), "is a file"),
        (("ls", dumps, "--run", 99), "There is no run 99"),
        (("ls", dumps, "-r", 0, "-n", "("), "no regular expression"),
        (("show", dumps, "model/0/adddmm:0"), "Did you mean 'model/0/addmm:0'"),
        (("show", dumps, "model/0/addmm:0[99]"), "out of bounds"),
        (("show", dumps, "model/0/addmm:0[a]"), "no index or slice"),
        (("show", dumps, "model/0/addmm:0", "--op", "DebugHash"), "has no record of 'DebugHash'"),
        (("show", dumps, "model/0/addmm:0", "-e", 9), "no execution 9"),
        (("export", dumps, "-o", tmp_path / "x.unknown"), "Say the format"),
    ]:
        code, _, err = run(capsys, *arguments)
        assert code == 2, arguments
        assert words in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["run.npz", "run.safetensors", "run.parquet", "tfdbg"])
def test_export(dumps, capsys, tmp_path, name):
    target = tmp_path / name
    arguments = ["export", dumps, "--run", 0, "-o", target, *(["--to", "tfdbg"] if name == "tfdbg" else [])]
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    assert "wrote" in out
    assert target.exists()
    assert run(capsys, *arguments)[0] == 2
    assert run(capsys, *arguments, "--force")[0] == 0
    if name == "run.npz":
        assert np.load(target)["model/0/addmm:0:DebugIdentity"].shape == (3, 8)
    if name == "tfdbg":
        _, out, _ = run(capsys, "ls", target, "--json")
        assert "model/0/addmm:0" in {each["tensor"] for each in json.loads(out)["tensors"]}


@pytest.fixture(scope="module")
def whole_values(tmp_path_factory):
    """The default dump: values only, no health; the second run holds a NaN."""
    root = tmp_path_factory.mktemp("values") / "dumps"
    hook = tt.DumpingDebugHook(root)
    with tt.MonitoredSession(tt.torch.Session(lambda x: {"y": x.log() + 1}), hooks=[hook]) as session:
        for value in (1.0, -1.0):
            session.run("y", {"x": torch.full((3,), value)})
    return root


def test_bad_looks_into_values_where_no_health_was_recorded(whole_values, capsys):
    _, out, _ = run(capsys, "ls", whole_values, "--run", 1, "--bad", "--json")
    assert [each["tensor"] for each in json.loads(out)["tensors"]] == ["log:0", "add:0"]
    _, out, _ = run(capsys, "ls", whole_values, "--bad", "--json")
    assert [each["run"] for each in json.loads(out)["runs"]] == [1]


def test_the_first_bad_tensor_is_the_same_from_pills_and_from_values(dumps, whole_values):
    (found,) = SessionDir(whole_values).run(1).find(has_inf_or_nan, first_n=1)
    assert found.tensor_name == "log:0"
    bad = SessionDir(dumps).run(2).find(has_inf_or_nan)
    by_op = {
        op: [d.tensor_name for d in bad if d.debug_op == op]
        for op in ("DebugIdentity", "DebugNumericSummary")
    }
    assert by_op["DebugIdentity"] == by_op["DebugNumericSummary"]
    assert SessionDir(dumps).run(0).find(has_inf_or_nan) == []


def test_health_of_all_runs_as_parquet(dumps, capsys, tmp_path):
    import pyarrow.parquet

    target = tmp_path / "health.parquet"
    assert run(capsys, "export", dumps, "-o", target)[0] == 0
    assert set(pyarrow.parquet.read_table(target)["run"].to_pylist()) == {0, 1, 2}


def test_a_failed_export_leaves_everything_alone(whole_values, capsys, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years")
    old = tmp_path / "old.npz"
    old.write_bytes(b"old")
    before = sorted(whole_values.rglob("*"))
    for arguments in (
        ("export", whole_values, "--to", "npz", "-o", whole_values, "--force"),
        ("export", whole_values, "--to", "tfdbg", "-o", whole_values.parent, "--force"),
        ("export", whole_values, "--to", "tfdbg", "-o", precious, "--force"),
        ("export", whole_values, "--to", "npz", "-o", precious, "--force"),
        ("export", whole_values, "--run", 99, "-o", old, "--force"),
        ("export", tmp_path / "nowhere", "-o", old, "--force"),
    ):
        assert run(capsys, *arguments)[0] == 2, arguments
    assert sorted(whole_values.rglob("*")) == before
    assert (precious / "thesis.txt").read_text() == "years"
    assert old.read_bytes() == b"old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old.npz", "precious"]


def test_a_terminal_without_unicode(dumps):
    command = [sys.executable, "-m", "tensortap.commands", "ls", str(dumps)]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr


def test_help_teaches(capsys):
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
        assert f"tensortap {command} " in capsys.readouterr().out


def test_no_framework_is_imported_to_read(dumps):
    program = (
        "import sys; from tensortap.commands import main; main(sys.argv[1:]); "
        "print([n for n in ('torch', 'tensorflow', 'jax') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "ls", str(dumps)], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip().endswith("[]")


def test_a_closed_pipe_is_no_error(dumps):
    command = f"{sys.executable} -m tensortap.commands ls {dumps} --run 0 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", (0,)),
        ("-1", (-1,)),
        (":", (slice(None),)),
        ("1:3, ::-2", (slice(1, 3), slice(None, None, -2))),
        ("..., 4", (..., 4)),
    ],
)
def test_slices(text, expected):
    assert parse_slices(text) == expected
    assert split_slices(f"a/b:0[{text}]") == ("a/b:0", expected)


@pytest.mark.parametrize("text", ["", "1,,2", "a", "1:2:3:4", "__import__('os')", "1.5", "::0"])
def test_what_is_no_slice(text):
    with pytest.raises(ValueError, match=r"no index|no number|zero"):
        parse_slices(text)


def test_numbers_of_large_and_odd_arrays():
    values = np.random.default_rng(0).normal(1e6, 1.0, 3_000_000)
    found = summarize(values)
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.std == pytest.approx(values.std(), rel=1e-9)
    assert summarize(np.array([b"text"])) is None
    assert summarize(np.zeros((0, 3))).mean is None
    assert summarize(np.array([1 + 1j, np.nan])).nan == 1


def test_a_directory_of_sessions_is_told_from_one(tmp_path, capsys):
    write_sample(tmp_path / "first")
    assert main(["ls", str(tmp_path)]) == 2
    assert f"It holds the session '{tmp_path / 'first'}'." in capsys.readouterr().err
