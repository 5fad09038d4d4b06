"""Jobs of several ranks that were set up wrongly: what is said, by which rank, and training that goes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tensortap.commands import main
from tensortap.reader import SessionDir
from tensortap.server import DebugServer
from tests.patience import finished, patient, wait_until

TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.ones(3, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"trained {loss.item():.6f}")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def environment_of(rank="0", world="2", job="29500"):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TENSORTAP", "RANK"))
    }
    return environment | {
        "RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": job,
    }


def run(directory, *options, rank="0", world="2", token=None, job="29500", **variables):
    """What a rank says, of a job that has its own launch."""
    environment = environment_of(rank, world, job) | variables
    if token is not None:
        environment["TENSORTAP_TOKEN"] = token
    command = [sys.executable, "-m", "tensortap", "run", "-o", directory, *options, "train.py"]
    done = finished(command, env=environment)
    assert done.returncode == 0, done.stderr
    assert "trained 0." in done.stdout
    return " ".join(done.stderr.split())


@pytest.fixture
def secured(here):
    """A server with a token and TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    with DebugServer(
        here / "served", http_port=None, token="right", tls_cert="cert.pem", tls_key="key.pem"
    ) as server:
        yield server


def test_a_wrong_token_and_a_missing_one_are_told_by_their_rank(secured):
    port = secured.address.rpartition(":")[2]
    stream = ("--stream", f"localhost:{port}/job", "--tls-ca", "cert.pem")
    for rank, token in enumerate(("wrong", None)):
        said = run(f"refused{rank}", *stream, rank=str(rank), token=token)
        assert f"tensortap (rank {rank}): The debug server localhost:{port} refuse" in said
        assert "The server wants a token, and got none or a wrong one." in said
        assert "Training goes on" in said
        assert " 0 records arrived; " in said
    assert secured.statistics.counts()["records"] == 0
    said = run("accepted", *stream, rank="1", token="right")
    assert "refuse" not in said
    assert [each.rank for each in SessionDir(secured.root / "job").coverage().ranks] == [1]


def test_a_server_that_is_not_there_is_told_by_its_rank(here):
    with DebugServer(here / "served", http_port=None) as server:
        address = server.address
    said = run("alone", "--stream", f"{address}/job", rank="1")
    assert re.search(
        rf"tensortap \(rank 1\): 5 runs for the debug server {address}: 0 records arrived; \d+ records", said
    )
    assert len(SessionDir("alone").runs) == 5


def begun(directory, address, **place):
    """A rank that streams its training, and then waits for a word until it trains on."""
    with open("waits.py", "w") as file:
        file.write(f"{TRAINING}\nprint(input())\n{TRAINING}")
    command = [sys.executable, "-m", "tensortap", "run", "-o", directory, "--stream", address, "waits.py"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    rank = subprocess.Popen(command, env=environment_of(**place), text=True, **pipes)
    assert rank.stdout.readline().startswith("trained")
    return rank


def test_a_server_that_goes_away_is_told_once_by_its_rank_and_changes_nothing(here):
    with DebugServer(here / "served", http_port=None) as server:
        rank = begun("node1", f"{server.address}/job", rank="1")
        wait_until(lambda: server.statistics.counts()["records"] > 0)
    out, said = rank.communicate("on", timeout=patient(120))
    alone = finished([sys.executable, "waits.py"], input="on").stdout.splitlines()
    assert rank.returncode == 0
    assert out.splitlines() == alone[1:]
    told = re.findall(
        r"\(rank 1\): The (?:connection to the )?debug server \S+ (was lost|has not answered)", said
    )
    # Once, for each of the two ways in which it is noticed; not at all, if the program has ended before.
    assert len(told) == len(set(told)), said
    assert told or "program ended before they were sent" in said, said
    assert re.search(r"\(rank 1\): 10 runs for the debug server .* records dropped \(", said)
    assert len(SessionDir("node1").runs) == 10


def test_two_jobs_of_one_name_are_told_at_the_server(here, caplog):
    with DebugServer(here / "served", http_port=None) as server:
        first = begun("first", f"{server.address}/job", job="29500")
        said = run("second", "--stream", f"{server.address}/job", job="29501")
        out, _ = first.communicate("on", timeout=patient(120))
    assert "The job job has two processes of rank 0 at once, on " in caplog.text
    assert "name one of them otherwise" in caplog.text
    assert "trained" in out  # neither of them is stopped
    assert "0 dropped" in said


def test_ranks_of_different_versions_are_named(here, capsys, caplog):
    other = here / "other" / "tensortap-99.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: tensortap\nVersion: 99.0\n")
    with DebugServer(here / "served", http_port=None) as server:
        for rank, variables in (("0", {}), ("1", {"PYTHONPATH": str(other.parent)})):
            run(f"node{rank}", "--stream", f"{server.address}/job", rank=rank, **variables)
    assert "Rank 1 of the job job is watched by tensortap 99.0, and this server is " in caplog.text
    assert "Rank 0 of the job" not in caplog.text
    assert main(["why", "served/job"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "The ranks of this job run different versions of tensortap: " in told
    assert "99.0 by rank 1" in told


@pytest.mark.parametrize(("rank", "world"), [("5", "2"), ("one", "2")])
def test_a_rank_that_cannot_be_is_told_and_recorded_as_none(here, capsys, rank, world):
    said = run("odd", rank=rank, world=world)
    assert f"RANK={rank} of WORLD_SIZE={world} is no rank of a job" in said
    assert main(["why", "odd"]) == 0
    assert "✓ healthy" in capsys.readouterr().out


def test_directories_of_several_machines_are_one_job(here, capsys):
    for rank in "01":
        run(f"node{rank}", rank=rank)
    with tarfile.open("node0.tar.gz", "w:gz") as archive:
        archive.add("node0")
    with zipfile.ZipFile("node1.zip", "w") as archive:
        for path in sorted((here / "node1").rglob("*")):
            archive.write(path, path.relative_to(here))
    for directories in (["node0", "node1"], ["node0.tar.gz", "node1"], ["node1.zip", "node0.tar.gz"]):
        assert main(["ranks", *directories]) == 0
        shown = capsys.readouterr().out
        assert "5 runs of ranks 0, 1 compared" in shown, directories
        assert "Nothing diverged" in shown
    assert main(["diff", "node0.tar.gz", "node1.zip"]) == 0
    assert "✓ same" in capsys.readouterr().out


def test_directories_of_different_jobs_are_refused(here, capsys):
    run("mine", rank="0", job="29500")
    run("theirs", rank="1", job="29501")
    assert main(["ranks", "mine", "theirs"]) == 2
    said = capsys.readouterr().err
    assert "'mine' and 'theirs' are of different jobs: rank 0 was one of 2" in said
    assert main(["ranks", "mine", "mine"]) == 2
    assert "Rank 0 is in 'mine' and in 'mine'" in capsys.readouterr().err
