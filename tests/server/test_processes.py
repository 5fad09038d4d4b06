"""What processes of a job say of themselves, each message a call of its own, which others may overtake."""

from __future__ import annotations

import json
from dataclasses import replace

import grpc
import pytest

from tensortap.server import DebugServer
from tensortap.store.processes import ENDED, RUNNING, ProcessFacts, facts_as_text, read_processes
from tensortap.wire.debug_service import SEND_PROCESS

FACTS = ProcessFacts(host="node", pid=17, rank=0, world=2, began=100.0, since=100.0)


@pytest.fixture
def told(tmp_path):
    """Send what a process says, and read what is known of it then."""
    with DebugServer(tmp_path, http_port=None) as server, grpc.insecure_channel(server.address) as channel:
        send = channel.unary_unary(SEND_PROCESS)

        def tell(**changes):
            facts = replace(FACTS, **changes)
            send(json.dumps({"job": "job", "facts": json.loads(facts_as_text(facts))}).encode())
            (known,) = read_processes(tmp_path / "job")[0]
            return known.state, known.run

        yield tell


def test_a_sign_of_life_that_is_overtaken_by_the_end_does_not_undo_it(told):
    assert told(seen=101.0, run=1, state=RUNNING) == (RUNNING, 1)
    assert told(seen=103.0, run=2, state=ENDED) == (ENDED, 2)
    assert told(seen=102.0, run=2, state=RUNNING) == (ENDED, 2)
    assert told(seen=104.0, run=3, state=RUNNING) == (RUNNING, 3), "it has begun another session"


def test_the_end_counts_although_the_clock_of_the_process_was_set_back(told):
    assert told(seen=101.0, run=1, state=RUNNING) == (RUNNING, 1)
    assert told(seen=50.0, run=2, state=ENDED) == (ENDED, 2)
