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
from tests.patience import finished

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


def run(directory, *options, rank="0", world="2", token=None, job="29500"):
    """What a rank says, of a job that has its own launch."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TENSORTAP", "RANK"))
    }
    environment |= {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": job}
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
