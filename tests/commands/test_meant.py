"""Commands answer about the run that is meant, say which, and fit the terminal."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensortap as tt
from tensortap.commands import main

NAME = "a_transformer_with_a_very_long_name_that_nobody_would_like_to_type"


class Attention(nn.Module):
    """Masked, so that every healthy run has infinities that are meant."""

    def __init__(self):
        super().__init__()
        self.a_projection_of_queries_keys_and_values = nn.Linear(4, 4)

    def forward(self, x):
        h = self.a_projection_of_queries_keys_and_values(x)
        scores = (h @ h.T).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), float("-inf"))
        return F.softmax(scores, -1) @ h


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a_list_of_attention_blocks = nn.ModuleList([Attention() for _ in range(2)])

    def forward(self, x):
        for block in self.a_list_of_attention_blocks:
            x = x + block(x)
        return x


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Four training steps, of which the third makes a NaN, and an evaluation."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("meant") / "a_directory_of_dumps"
    model = Model()
    watch = tt.WatchOptions(["DebugNumericSummary"], keep_bad=8)
    with tt.torch.monitor(
        {NAME: model}, hooks=[tt.DumpingDebugHook(root, lambda fetches, feeds: watch)]
    ) as m:
        for step in range(5):
            with m.run():
                y = model(torch.ones(3, 4))
                if step < 4:
                    (y.square() - (1e6 if step == 2 else -1)).log().mean().backward()
    return root


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(each) for each in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


FIRST_BAD = "note: Run 2, the first bad one; -r N shows another.\n"


def test_the_first_bad_run_is_meant(run, session):
    for command in (("show", "log:0"), ("node", "log"), ("inputs", "log"), ("source",), ("ls", "-n", "log")):
        code, out, err = run(command[0], session, *command[1:])
        assert (code, err) == (0, FIRST_BAD), command
        assert run(command[0], session, *command[1:], "-r", 2)[1:] == (out, ""), (
            "the same, and nothing to say"
        )
    assert "nan" in run("show", session, "log:0", "--json")[1]
    assert run("show", session, "log:0", "--json")[2] == "", "for scripts the answer says it"
    assert json.loads(run("show", session, "log:0", "--json")[1])["run"] == "2"


def test_in_a_healthy_session_it_is_the_last_run_or_the_last_that_has_the_name(run, tmp_path):
    hook = tt.DumpingDebugHook(tmp_path, lambda fetches, feeds: tt.WatchOptions(["DebugNumericSummary"]))
    with tt.torch.monitor({}, hooks=[hook]) as m:
        for step in range(3):
            with m.run():
                y = torch.ones(3).exp()
                if step < 2:
                    y.cos()
    assert run("show", tmp_path, "exp:0")[2] == "note: Run 2, the last one; -r N shows another.\n"
    assert run("show", tmp_path, "cos:0")[2] == "note: Run 1, the last with cos:0; -r N shows another.\n"
    assert run("show", tmp_path, "cos:0", "-r", 2)[0] == 2
    assert run("diff", tmp_path) == (
        2,
        "",
        "tensortap diff: No run is bad; name two with --run and --other-run, or a second directory.\n",
    )


def test_diff_of_one_session_compares_the_first_bad_run_with_the_one_before(run, session):
    code, out, err = run("diff", session)
    assert code == 1
    assert "run 1 and run 2" in out
    assert err == "note: Run 1, and run 2, the first bad one.\n"


def test_infinities_that_are_meant_are_told_apart(run, session):
    _, out, _ = run("ls", session, "--bad")
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["2"], "masks do not make the other runs bad"
    row = dict(zip(out.split("\n")[0].split(), out.split("\n")[1].split("  "), strict=False))
    assert "meant" in row
    _, out, _ = run("ls", session, "-r", 2, "--bad")
    rows = out.splitlines()[1:]
    marked = ["(meant)" in line for line in rows]
    assert any(marked)
    assert marked == sorted(marked), "behind what is bad"
    assert "log:0" in rows[0]
    found = json.loads(run("ls", session, "-r", 2, "--bad", "--json")[1])["tensors"]
    assert {each["standing"] for each in found} >= {"bad", "meant"}
    assert [each for each in found if each["standing"] == "bad" and "masked_fill" in each["tensor"]] == []


def test_show_tells_dtype_and_shape_of_the_tensor_and_not_of_its_summary(run, session):
    _, out, _ = run("show", session, "log:0", "--op", "NumericSummary")
    assert "dtype:     float32\n" in out
    assert "shape:     [3, 4]\n" in out


def test_everything_fits_the_terminal(run, session, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    long = f"{NAME}/a_list_of_attention_blocks/1/a_projection_of_queries_keys_and_values/addmm"
    for command in (
        ("why",),
        ("why", "--all"),
        ("ls",),
        ("ls", "-r", 2, "--bad"),
        ("find",),
        ("find", "true", "-r", 2),
        ("health",),
        ("health", "-r", 2),
        ("show", f"{long}:0"),
        ("node", long),
        ("inputs", "log", "-R"),
        ("outputs", long, "-d", 3),
        ("source",),
        ("history", f"{long}:0"),
        ("diff",),
    ):
        _, out, _ = run(command[0], session, *command[1:])
        assert out
        # A path cannot be cut in a command that is to be copied.
        lines = [line for line in out.splitlines() if str(session) not in line]
        assert max(map(len, lines)) <= 80, (command, max(lines, key=len))
    cut = run("find", session, "true", "-r", 2)[1]
    assert f"{long}:0" not in cut
    assert f"{long}:0" in run("find", session, "true", "-r", 2, "--wide")[1]


def test_a_command_that_is_too_long_goes_on_as_a_shell_reads_it(run, session):
    _, out, _ = run("why", session)
    text = out[out.index("next") + 4 :].replace("\\\n", " ")
    commands = [line.split() for line in text.splitlines()]
    assert ["tensortap", "node", str(session), "log", "-r", "2"] in commands


def test_our_own_fault_is_told_as_one_and_the_switch_shows_where(run, session, monkeypatch):
    def broken(*arguments, **more):
        raise KeyError("abc")

    monkeypatch.setattr("tensortap.commands.show.open_run", broken)
    code, out, err = run("show", session, "log:0")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "KeyError: 'abc' (test_meant.py:" in err
    assert "in broken). This is a fault of tensortap; TENSORTAP_TRACEBACK=1 shows all of it." in err
    assert "Traceback" in run("--traceback", "show", session, "log:0")[2]
    monkeypatch.setenv("TENSORTAP_TRACEBACK", "1")
    assert "Traceback" in run("show", session, "log:0")[2]


def test_mistakes_are_still_one_line(run, session, tmp_path):
    for arguments, words in (
        (("show", session, "log:0[99, 1]"), "index 99 is out of bounds"),
        (("show", session, f"{NAME}/a_list_of_attention_blocks/0/add:0[0]"), "has no tensor"),
        (("show", session, "lok:0"), "Did you mean 'log:0'"),
        (("why", tmp_path / "nothing"), "There is no directory"),
        (("eval", session, "`log:0:DebugNumericSummary`[99]"), "out of bounds"),
        (("eval", session, "`log:0:DebugNumericSummary` @ 3"), "@ needs matrices"),
        (("ls", session, "-n", "("), "no regular expression"),
    ):
        code, _, err = run(*arguments)
        assert (code, err.count("\n")) == (2, 1), err
        assert "fault of tensortap" not in err, err
        assert words in err, err


def test_history_of_a_number_that_was_recorded_whole(run, tmp_path):
    hook = tt.DumpingDebugHook(tmp_path, lambda fetches, feeds: tt.WatchOptions(["DebugIdentity"]))
    with tt.torch.monitor({}, hooks=[hook]) as m:
        for step in range(3):
            with m.run():
                (torch.ones(4) * step).mean()
                torch.ones(2).to(torch.bfloat16).sum()
    code, out, err = run("history", tmp_path, "mean:0")
    assert (code, err) == (0, "")
    assert out.startswith("mean:0  3 runs, 0 bad\n")
    assert [line.split()[-2] for line in out.splitlines()[-3:]] == ["0", "1", "2"]
    assert run("history", tmp_path, "sum:0")[0] == 0


def test_help_names_every_number_of_a_condition(run, capsys):
    from tensortap.analyze.filters import PILL_NAMES

    with pytest.raises(SystemExit):
        main(["why", "--help"])
    words = capsys.readouterr().out.split()
    assert {name for name in PILL_NAMES if not {name, f"({name}", f"{name})"} & set(words)} == set()


def test_doctor_looks_at_everything_that_is_needed(run):
    _, out, _ = run("doctor", "--quick", "--json")
    checks = {check["name"]: check["status"] for check in json.loads(out)["checks"]}
    assert {"numpy", "rich", "streaming", "debug server", "Parquet files", "torch"} <= checks.keys()
    assert checks["torch"] == "untried", "no tick for what nobody has used"


SPARSE = """
import sys, warnings, torch, tensortap as tt
warnings.simplefilter("ignore")
x = torch.zeros(50, 40)
x[3], x[20], x[17, 21] = 1, 3, -1
makers = {
    "coo": lambda: x.to_sparse(),
    "hybrid": lambda: x.to_sparse(1),
    "csr": lambda: x.to_sparse_csr(),
    "csc": lambda: x.to_sparse_csc(),
    "bsr": lambda: x.to_sparse_bsr((5, 4)),
}
watch = tt.WatchOptions(["DebugNumericSummary", "DebugIdentity"])
for interceptor in ("native", "dispatch"):
    for name, make in makers.items():
        session = tt.torch.Session(lambda: {"y": torch.sqrt(make())}, interceptor=interceptor)
        root = f"{sys.argv[1]}/{interceptor}/{name}"
        with tt.DumpingDebugWrapperSession(session, root, watch_fn=lambda fetches, feeds: watch) as watched:
            watched.run(None)
        assert session.faults == 0
"""


def test_a_bad_element_of_a_sparse_tensor_has_a_row_and_a_column(run, tmp_path):
    subprocess.run([sys.executable, "-c", SPARSE, str(tmp_path)], check=True, timeout=300)
    for interceptor in ("native", "dispatch"):
        for layout in ("coo", "hybrid", "csr", "csc", "bsr"):
            _, out, _ = run("why", tmp_path / interceptor / layout, "--wide")
            assert "The first bad element is [17, 21] (row 17, column 21): nan" in out, (
                interceptor,
                layout,
                out,
            )
