"""Processes below a program: which of them are said not to be watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tensortap.launch import children
from tensortap.launch.job import process_folder

FORKS = """
import os, time
print(os.getpid(), flush=True)
if os.fork() == 0:
    if os.fork() == 0:
        print(os.getpid(), os.getppid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


def test_copies_of_a_watched_process_are_no_processes_that_nobody_watches(tmp_path, monkeypatch):
    """Such as the workers of a rank's data loader."""
    monkeypatch.setattr(children, "has_loaded", lambda process, library: True)
    rank = subprocess.Popen(
        [sys.executable, "-S", "-c", FORKS], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        began = [int(number) for _ in range(2) for number in rank.stdout.readline().split()]
        looking = children.Children(lambda unwatched: None, tmp_path)
        folder = process_folder(tmp_path)
        folder.mkdir(parents=True)
        (folder / f"{rank.pid}.joined").touch()
        looking.stop()
        assert not {each.pid for each in looking.unwatched} & set(began)
        (folder / f"{rank.pid}.joined").unlink()
        looking.stop()
        assert rank.pid in {each.pid for each in looking.unwatched}
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.communicate()
