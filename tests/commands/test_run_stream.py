"""`tensortap run --stream`: however a program ends, its records are counted once, and the same on both sides."""

from __future__ import annotations

import re
import subprocess
import sys
import time

from tensortap.reader import SessionDir
from tensortap.server import DebugServer, StreamHandler
from tensortap.store.session import run_size
from tests.patience import patient

TRAINING = """
import os, sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    loss = model(torch.ones(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.3f}", model(torch.ones(3, 4)).mean().item() < 100)  # in a run that no step ends
"""

ENDINGS = {
    "returns": "",
    "exits": "sys.exit(3)",
    "raises": "raise ValueError('the end')",
    "goes on at exit": "import atexit; atexit.register(lambda: model(torch.ones(3, 4)))",
    "has a late thread": "import threading; threading.Timer(0.5, print, ['late']).start()",
}


def started(server, root, *command, **options):
    """A program under `tensortap run`, streaming to a server."""
    launch, program = command[:-1], command[-1]
    run = [*launch, "-m", "tensortap", "run", "-o", str(root), "--stream", f"{server.address}/{root.name}"]
    return subprocess.Popen(
        [*run, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def numbers(text):
    """What a summary says: records seen, arrived, dropped by the stream, runs kept."""

    def find(pattern):
        found = re.search(pattern, " ".join(text.split()))
        return int(found[1].replace(",", "")) if found else 0

    return (
        find(r"([\d,]+) records?, "),
        find(r"([\d,]+) records? arrived"),
        find(r"([\d,]+) records? dropped \("),
        find(r"kept ([\d,]+) run"),
    )


def test_every_record_arrives_however_the_program_ends(tmp_path):
    """One program for each ending, and one of a single step, all at once."""
    running = {}
    with DebugServer(tmp_path / "served", http_port=None) as server:
        for number, (name, ending) in enumerate({**ENDINGS, "takes one step": ""}.items()):
            script = tmp_path / f"train{number}.py"
            script.write_text(TRAINING + ending)
            steps = "1" if name == "takes one step" else "12"
            running[name] = started(server, tmp_path / f"run{number}", sys.executable, [str(script), steps])
        total = 0
        for name, process in running.items():
            out, said = process.communicate(timeout=patient(60))
            assert "True" in out, said
            assert process.returncode == {"exits": 3, "raises": 1}.get(name, 0)
            seen, arrived, dropped, _ = numbers(said)
            assert (arrived, dropped) == (seen, 0), name
            assert seen > (10 if name == "takes one step" else 150)
            assert "program ended before" not in said
            total += arrived
        counts = server.statistics.counts()
    assert counts["records"] == total
    assert (counts["broken"], counts["dropped"], counts["failures"], counts["refused"]) == (0, 0, 0, 0)


RANK = TRAINING.replace(
    "torch.manual_seed(0)",
    "torch.distributed.init_process_group('gloo'); torch.manual_seed(torch.distributed.get_rank())",
)


def test_what_is_kept_is_counted_over_all_ranks(tmp_path):
    (tmp_path / "train.py").write_text(RANK)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    with DebugServer(tmp_path / "served", http_port=None) as server:
        process = started(server, tmp_path / "run", *launcher, [str(tmp_path / "train.py"), "3"])
        _, said = process.communicate(timeout=patient(60))
        counts = server.statistics.counts()
    assert process.returncode == 0, said
    runs = SessionDir(tmp_path / "run").runs
    kept = re.search(rf"{len(runs)} runs, ([\d.]+) kB,", " ".join(said.split()))
    assert kept is not None, said
    # Graphs, sources and the history of health are counted, too.
    assert float(kept[1]) * 1000 > sum(run_size(run.path) for run in runs)
    _, arrived, dropped, kept = numbers(said)
    assert (dropped, kept) == (0, len(runs))
    assert counts["records"] == 2 * arrived  # as many from the rank that does not speak
    assert counts["broken"] == 0


class Slow(StreamHandler):
    def on_batch(self, batch):
        time.sleep(0.2)


def test_a_slow_server_gets_everything_and_one_that_has_gone_is_reported(tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text(TRAINING)
    left = tmp_path / "left.py"
    left.write_text(f"{TRAINING}\nprint('trained', flush=True)\ninput()\nmodel(torch.ones(3, 4))")
    with DebugServer(tmp_path / "served", http_port=None, handler=Slow) as server:
        with DebugServer(tmp_path / "leaves", http_port=None) as leaving:
            patiently = started(server, tmp_path / "slow_run", sys.executable, [str(slow), "12"])
            alone = started(
                leaving, tmp_path / "left_run", sys.executable, [str(left), "12"], stdin=subprocess.PIPE
            )
            assert "True" in alone.stdout.readline()
            assert "trained" in alone.stdout.readline()
        begin = time.monotonic()
        _, said = alone.communicate("\n", timeout=patient(60))
        assert alone.returncode == 0
        assert time.monotonic() - begin < patient(20)
        seen, arrived, dropped, _ = numbers(said)
        assert 0 < arrived < seen
        assert arrived + dropped == seen  # every record is in exactly one of these
        assert len(re.findall("runs for the debug +server", " ".join(said.split()))) == 1
        _, said = patiently.communicate(timeout=patient(60))
        seen, arrived, dropped, _ = numbers(said)
        assert (arrived, dropped, seen) == (seen, 0, server.statistics.counts()["records"])
        assert server.statistics.counts()["broken"] == 0
