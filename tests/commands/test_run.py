"""`tensortap run`, as a user types it: real processes, compared with what `python` does with the same program."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tensortap.commands import main
from tensortap.reader import SessionDir
from tests.patience import patient

TENSORTAP = [sys.executable, "-m", "tensortap"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory; `folder(name, text)` writes a file in it."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    write.path = tmp_path
    return write


def ended(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=patient(120), **options)


def both(*arguments, **options):
    """The same program under python and under tensortap, without what the latter says itself."""
    alone = ended([sys.executable, *arguments], **options)
    watched = ended([*TENSORTAP, "run", *arguments], **options)
    watched.stderr = "".join(
        line for line in watched.stderr.splitlines(True) if not line.startswith("tensortap: ")
    )
    return alone, watched


def assert_same(alone, watched):
    assert (watched.returncode, watched.stdout, watched.stderr) == (
        alone.returncode,
        alone.stdout,
        alone.stderr,
    )


FACTS = """
import __main__, os, sys
print(sys.argv, sys.path[0], __name__, __file__, __package__, __doc__, __cached__, __builtins__)
print(__main__.__dict__ is globals(), __spec__ and __spec__.name, sorted(globals()), sys.stdin.read())
import beside
"""


def test_a_script_finds_everything_as_python_has_it(folder):
    folder("scripts/facts.py", FACTS)
    folder("scripts/beside.py", "print('imported from beside the script')")
    arguments = ("scripts/../scripts/facts.py", "-m", "--values", "--", "-o", "x")
    assert_same(*both(*arguments, input="from standard input"))


def test_a_module_and_the_main_module_of_a_package(folder):
    folder("package/__init__.py", "")
    folder("package/__main__.py", FACTS.replace("import beside", "from . import other"))
    folder("package/other.py", "print(__name__, __file__)")
    assert_same(*both("-m", "package", "-x", "1", input=""))
    assert_same(*both("-m", "nosuchmodule"))


def test_code(folder):
    assert_same(*both("-c", "import sys; print(sys.argv, sys.path[0], __name__); sys.exit(4)", "-m", "b"))


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a message')",
        "raise SystemExit",
        "def inner():\n    raise ValueError('mine')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    inner()",
        "x = = 1",
        "import sys\nsys.excepthook = lambda kind, error, traceback: print(traceback.tb_lineno)\nraise KeyError",
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)",
        "import atexit, threading\natexit.register(print, 'atexit')\n"
        "threading.Timer(0.2, print, ['thread']).start()\nprint('end')",
    ],
    ids=[
        "exit code",
        "exit message",
        "exit",
        "exception",
        "syntax",
        "excepthook",
        "SIGINT",
        "SIGTERM",
        "atexit",
    ],
)
def test_programs_end_as_under_python(folder, program):
    folder("program.py", program)
    assert_same(*both("program.py"))


def test_spawned_and_forked_processes_find_the_program(folder):
    folder(
        "pool.py",
        """
import multiprocessing, pickle
class Thing:
    value = 1
def work(thing):
    return thing.value, __name__
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(work, [Thing()]))
    print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)
""",
    )
    assert_same(*both("pool.py"))


def test_what_is_no_python_is_executed_as_the_shell_would_and_what_it_starts_is_watched(folder):
    folder(
        "train.py",
        "import torch\nw = torch.zeros(2, requires_grad=True)\nfor _ in range(3): (w / w).sum().backward()  # bad",
    )
    script = folder("train.sh", f"#!/bin/sh\necho $1\n{sys.executable} train.py\nexit 7\n")
    script.chmod(0o755)
    done = ended([*TENSORTAP, "run", "-o", "dumps", "./train.sh", "begins"])
    assert (done.returncode, done.stdout) == (7, "begins\n")
    assert "NaN at step 0" in done.stderr
    assert "train.py:3" in done.stderr


def test_a_program_without_pytorch_leaves_nothing_behind(folder):
    done = ended([*TENSORTAP, "run", "-c", "print('output')"])
    assert done.stdout == "output\n"
    assert done.stderr == (
        "tensortap: nothing was seen of the code: it used no PyTorch, TensorFlow or JAX. If it starts the program "
        "that does, write `tensortap run` before that one\n"
    )
    assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Which program?"),
        (("nosuch.py",), "There is no program 'nosuch.py' to run."),
        (("--watch", "(", "x.py"), "'(' is no regular expression"),
        (("-o", "full", "x.py"), "'full' is a directory that is not empty"),
        (("--filter", "mux > 1", "x.py"), "mux"),
    ],
)
def test_mistakes_are_one_line_and_nothing_runs(folder, capsys, arguments, message):
    folder("x.py", "print('it ran')")
    folder("full/file", "")
    assert main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert message.replace("'full'", repr(str(folder.path / "full"))) in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("option", [("--steps", "1:x"), ("--steps", ":"), ("--every", "0"), ("--ring", "-1")])
def test_options_that_are_none(folder, capsys, option):
    with pytest.raises(SystemExit) as caught:
        main(["run", *option, "x.py"])
    assert caught.value.code == 2
    assert option[1] in capsys.readouterr().err


# --- programs that train -------------------------------------------------------------------------------------


@pytest.fixture
def finding_of(capsys):
    """What `tensortap why` finds in a directory."""

    def why(directory):
        assert main(["why", str(directory), "--json"]) == 1
        return SimpleNamespace(**json.loads(capsys.readouterr().out)["first_bad"])

    return why


FORWARD = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return torch.log(self.fc(x).relu() * 0 + x.sum())  # the plant

if __name__ == "__main__":
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    data = [torch.full((2,), 0.0 if number == 5 else 1.0) for number in range(8)]
    for step, x in enumerate(DataLoader(data, num_workers=1)):
        loss = net(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step)
"""


def test_the_answer_is_on_standard_error_and_the_program_goes_on(folder, finding_of):
    folder("train.py", FORWARD)
    done = ended([*TENSORTAP, "run", "-o", "dumps", "train.py"])
    assert done.returncode == 0
    assert done.stdout == "".join(f"step {number}\n" for number in range(8))
    said = done.stderr
    assert said.startswith("tensortap: watching train.py, records in dumps\n")
    assert said.count("first bad value") == 1
    for part in (
        "at step 5\n",
        "net/log  aten::log",
        "train.py:13  in Net.forward",
        "│ return torch.log(self.fc(x).relu() * 0 + x.sum())",
        "log of zero",
        "seen     8 runs, 8 optimizer steps",
        "0 dropped",
        "bad since step 5: net/log, train.py:13",
        "tensortap why dumps\n",
        "tensortap ls dumps --run 5 --bad\n",
    ):
        assert part in said
    assert all(len(line) <= 80 for line in said.splitlines() if "return torch.log" not in line)
    finding = finding_of("dumps")
    assert (finding.node, finding.step, finding.phase) == ("net/log", 5, "forward")
    # The values themselves were kept, because they turned bad.
    run = SessionDir("dumps").run(5)
    assert run.get_tensors("net/log", 0, "DebugIdentity")


def test_the_demo_names_the_line_of_its_bug(folder):
    demo = Path(__file__).parents[2] / "examples" / "sentiment.py"
    done = ended([*TENSORTAP, "run", str(demo)])
    assert done.returncode == 0
    assert "step 50  loss nan" in done.stdout
    assert "│ return words.sum(dim=1) / present.sum(dim=1)" in done.stderr
    assert "at step 40\n" in done.stderr
    assert "Division by zero (0/0)" in done.stderr


BACKWARD = """
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
try:
    for step in range(1000):
        scale = torch.ones(3) if step < 2 else torch.zeros(3)
        root = torch.sqrt(weight * scale)
        (root * 0.5).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    print("cleaned up after step", step)
"""


def test_stop_ends_the_program_at_the_first_bad_value_and_lets_it_clean_up(folder, finding_of):
    folder("train.py", BACKWARD)
    done = ended([*TENSORTAP, "run", "--stop", "-q", "-o", "dumps", "train.py"])
    assert done.returncode == 1
    assert done.stdout == "cleaned up after step 2\n"
    assert "Traceback" not in done.stderr
    finding = finding_of("dumps")
    assert (finding.phase, finding.step, finding.source["line"]) == ("backward", 2, 8)
    assert done.stderr.count("first bad value") == 1
    assert done.stderr.count("tensortap: ending train.py, because of --stop\n") == 1


def test_stop_leaves_the_end_to_a_program_that_raises_in_the_bad_run(folder):
    text = (
        "        if root.grad_fn and step == 2:\n            raise KeyError(step)\n        optimizer.step()"
    )
    folder("train.py", BACKWARD.replace("        optimizer.step()", text))
    done = ended([*TENSORTAP, "run", "--stop", "-o", "dumps", "train.py"])
    assert done.returncode == 1
    assert "KeyError: 2" in done.stderr
    assert done.stderr.count("first bad value") == 1
    assert "because of --stop" not in done.stderr


def test_an_exception_in_the_middle_of_a_step_looks_as_under_python_and_is_recorded(folder):
    folder(
        "train.py",
        """
import torch
from torch import nn
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.full((2, 3), float("inf") if step == 2 else 1.0)).mean()
    if step == 2:
        loss @ torch.ones(5, 5)
    loss.backward()
    optimizer.step()
""",
    )
    done = ended([*TENSORTAP, "run", "-o", "dumps", "train.py"])
    assert done.returncode == 1
    traceback = done.stderr[done.stderr.index("Traceback") : done.stderr.index("\n\ntensortap\n")]
    assert "/tensortap/" not in traceback
    assert 'train.py", line 9, in <module>' in traceback
    assert "bad since step 2" in done.stderr
    last = SessionDir("dumps").run(-1)
    assert last.error.startswith("RuntimeError")
    assert "net/addmm" in last.nodes()


def test_warnings_of_ours_begin_with_our_name_or_come_as_the_program_logs(folder):
    warn = "logging.getLogger('tensortap.engine').warning('something is odd')"
    said = ended([*TENSORTAP, "run", "-q", "-c", f"import logging; {warn}"]).stderr
    assert said == "tensortap: something is odd\n"
    said = ended([*TENSORTAP, "run", "-q", "-c", f"import logging; logging.basicConfig(); {warn}"]).stderr
    assert said == "WARNING:tensortap.engine:something is odd\n"


def test_ctrl_c_ends_it_as_python_does_and_leaves_a_readable_directory(folder):
    folder(
        "train.py",
        """
import torch
from torch import nn
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    net(torch.ones(2, 3)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", flush=True)
""",
    )
    process = subprocess.Popen(
        [*TENSORTAP, "run", "-o", "dumps", "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(30):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=patient(60))
    assert process.returncode == -signal.SIGINT
    assert 0 < said.index("KeyboardInterrupt\n\n") < said.index("\n\ntensortap\n  seen ")
    assert "no bad value" in said
    session = SessionDir("dumps")
    assert len(session) >= 20
    assert session.notices == []


RANK = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
net = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
for step in range(6):
    x = torch.rand(5, 3)
    if step == 3 and dist.get_rank() == 1:
        x = x / (x - x)
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_ranks_share_a_directory_and_give_one_answer_that_names_the_rank(folder, finding_of):
    folder("train.py", RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = ended(
        [*torchrun, "-m", "tensortap", "run", "train.py"], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("first bad value") == 1
    assert done.stderr.count("optimizer steps") == 1
    assert "at step 3 on rank 1\n" in done.stderr
    assert "train.py:12" in done.stderr
    (directory,) = (folder.path / "tensortap-runs").iterdir()
    finding = finding_of(directory)
    assert (finding.rank, finding.node, finding.step) == (1, "div", 3)
    assert sorted(SessionDir(directory).tasks()) == [0, 1]


def test_the_two_lines_of_the_documentation(folder, finding_of):
    import torch
    from torch import nn

    page = (Path(__file__).parents[2] / "docs" / "run.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    model = nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [(torch.ones(2, 3), torch.ones(2, 1))] * 2 + [(torch.ones(2, 3) / 0, torch.ones(2, 1))]
    exec(example, {"model": model, "opt": opt, "loader": loader, "loss_fn": nn.functional.mse_loss})
    finding = finding_of("dumps")
    assert (finding.phase, finding.step) == ("input", 2)
