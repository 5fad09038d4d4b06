"""Disk limits (D25 to D27); over the limit training goes on (X9)."""

from __future__ import annotations

import numpy as np
import pytest

from tensortap.sink.budget import DEFAULT_LIMIT_BYTES, Budget, Meter, process_meter
from tensortap.sink.file import FileSink
from tensortap.sink.session_files import SessionFiles
from tests.sink.sample import info, play, record, watch_all


@pytest.fixture(autouse=True)
def no_limits_from_outside(monkeypatch):
    monkeypatch.delenv("TENSORTAP_DISK_BYTES_LIMIT", raising=False)
    monkeypatch.delenv("TFDBG_DISK_BYTES_LIMIT", raising=False)


def test_the_limit_is_strict_and_nothing_costs_nothing():
    run = Meter(Budget(bytes_per_session=12)).start_run()
    assert [run.refusal(4) for _ in range(3)] == [None, None, "session budget"]
    assert run.refusal(3) is None
    assert run.refusal(0) is None


def test_where_the_limit_comes_from(monkeypatch):
    assert Meter().limit == DEFAULT_LIMIT_BYTES == 107374182400
    monkeypatch.setenv("TFDBG_DISK_BYTES_LIMIT", "20")
    assert Meter().limit == 20
    monkeypatch.setenv("TENSORTAP_DISK_BYTES_LIMIT", "10")
    assert Meter().limit == 10
    assert Meter(Budget(bytes_per_session=5)).limit == 5
    monkeypatch.setenv("TENSORTAP_DISK_BYTES_LIMIT", "lots")
    with pytest.raises(ValueError, match="TENSORTAP_DISK_BYTES_LIMIT='lots'"):
        Meter()


def test_a_run_has_a_limit_of_its_own():
    meter = Meter(Budget(bytes_per_run=10))
    assert [meter.start_run().refusal(9) for _ in range(3)] == [None] * 3
    assert meter.start_run().refusal(10) == "run budget"
    meter.reset()
    assert meter.used == 0


def test_what_is_given_back_can_be_used_again():
    meter = Meter(Budget(bytes_per_session=10))
    first, second = meter.start_run(), meter.start_run()
    assert [first.refusal(4), second.refusal(5), first.refusal(2)] == [None, None, "session budget"]
    first.refund()
    first.refund()
    assert (meter.used, first.used) == (5, 0)
    meter.reset()
    assert second.refusal(3) is None
    second.refund()
    assert meter.used == 0, "what was counted before the reset is not given back twice"


@pytest.mark.parametrize("wrong", [0, -1, 1.5])
def test_a_limit_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="bytes_per_run must be a positive number"):
        Budget(bytes_per_run=wrong)


def test_records_over_the_limit_are_dropped_and_counted_and_said_once(tmp_path, caplog):
    """The case of TF's disk_usage_test: limit 10, records of 4 bytes; the third one does not fit."""
    meter = Meter(Budget(bytes_per_session=10))
    files = SessionFiles(tmp_path)
    for run in range(2):
        sink = FileSink(tmp_path / f"run_1_{run}", info(run), files, meter=meter)
        for _ in range(2):
            sink.write(record(value=np.ones(1, np.float32)))
        sink.close()
        assert sink.flush()
        if run == 0:
            assert sink.counts.written == 2
            assert sink.counts.dropped == {}
    assert sink.counts.written == 0
    assert sink.counts.dropped == {"session budget": 2}
    assert caplog.text.count("Budget.bytes_per_session") == 1


def test_options_can_reset_the_count_of_the_process(tmp_path):
    """D27."""
    url = f"file://{tmp_path}/run_1_0"
    publisher = play({"x": np.ones(8, np.float32)}, watch_all(url), reset_disk_byte_usage=True)
    assert publisher.sinks[0].flush()
    assert process_meter().used == 32
