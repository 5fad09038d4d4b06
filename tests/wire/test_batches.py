"""Batches between our client and our server: the same records again, and nothing else gets through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensortap.records import RECORD_ROW, KeyTable
from tensortap.wire.batches import BatchDecoder, BatchEncoder
from tensortap.wire.debug_service import Event, WireError
from tensortap.wire.events import BATCH, BATCH_PLUGIN, TENSOR, TensorJoiner, kind_of, own_event
from tensortap.wire.messages import BatchMessage, KeyBlock
from tests.store.sample import CPU, batch_of, pill, record
from tests.wire.test_events import numbers, same

layouts = st.fixed_dictionaries(
    {"alignment": st.sampled_from([8, 64]), "gap": st.sampled_from([0, 700]), "backwards": st.booleans()}
)


def received(messages):
    """What a server makes of the messages of one stream."""
    decoder, joiner, found = BatchDecoder(), TensorJoiner(), []
    for message in messages:
        event = Event.FromString(message)
        if kind_of(event) == BATCH:
            found.extend(decoder.decode(event) or ())
        else:
            assert kind_of(event) == TENSOR
            record = joiner.add(event)
            found.extend([] if record is None else [record])
    return found


@given(st.lists(numbers, min_size=1, max_size=8), layouts, st.integers(40, 2000), st.integers(1, 4))
def test_batches_arrive_whole_however_they_lie_and_are_cut(listed, layout, max_bytes, parts):
    encoder, table, messages = BatchEncoder(max_bytes), KeyTable(), []
    for start in range(0, len(listed), parts):  # the table grows from batch to batch
        messages += encoder.encode(batch_of(listed[start : start + parts], table, **layout))
    arrived = received(messages)
    assert len(arrived) == len(listed)
    assert all(same(a, b) for a, b in zip(listed, arrived, strict=True))


def test_a_value_longer_than_a_message_travels_as_tfdbg_sends_it():
    listed = [pill("a"), record("w", np.arange(1000, dtype=np.float32)), pill("b")]
    messages = list(BatchEncoder(1000).encode(batch_of(listed)))
    assert max(map(len, messages)) < 1500
    assert all(same(a, b) for a, b in zip(listed, received(messages), strict=True))


def test_the_names_of_keys_travel_once_and_mean_the_same_table_in_every_run():
    table, tables = KeyTable(), []
    for _ in range(3):
        encoder, decoder = BatchEncoder(), BatchDecoder()
        first, second = (
            list(encoder.encode(batch_of([pill(f"node{n}") for n in range(50)], table))) for _ in "ab"
        )
        assert len(second[0]) < len(first[0]) - 50 * len("nodeDebugNumericSummary")
        tables.append(decoder.decode(Event.FromString(first[0])).table)
        assert decoder.decode(Event.FromString(second[0])).table is tables[-1]
    assert tables[0] is tables[1] is tables[2]


def test_names_that_are_no_text_are_spelled_out():
    (arrived,) = received(BatchEncoder().encode(batch_of([pill("half \udcff")])))
    assert arrived.node_name == "half \\udcff"


def test_many_names_travel_in_several_messages():
    listed = [pill("n" * 3000 + str(number)) for number in range(2000)]
    messages = list(BatchEncoder().encode(batch_of(listed)))
    assert max(map(len, messages)) < 4 << 20
    assert all(same(a, b) for a, b in zip(listed, received(messages), strict=True))


def sent(key_block=None, rows=b"", data=b"", table=0):
    if key_block is None:
        key_block = KeyBlock()
        key_block.keys.add(node_name="x", debug_op="DebugIdentity", device=CPU, dtype="float32")
        key_block = key_block.SerializeToString()
    message = BatchMessage(table=table, key_block=key_block, rows=rows, data=data).SerializeToString()
    return Event.FromString(b"".join(own_event(BATCH_PLUGIN, message)))


def row(key=0, rank=1, time=1, offset=0, nbytes=8, dims=(2,)):
    rows = np.zeros(1, RECORD_ROW)
    rows[0] = (key, rank, time, offset, nbytes, (*dims, *(0,) * (8 - len(dims))))
    return rows.tobytes()


def test_a_batch_made_by_hand_is_read():
    (arrived,) = BatchDecoder().decode(sent(rows=row(), data=bytes(8)))
    assert (arrived.node_name, arrived.shape) == ("x", (2,))
    assert BatchDecoder().decode(sent()) is None, "names alone"


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (sent(b"", row(), bytes(8)), "before the names"),
        (sent(b"\xff"), "cannot be read"),
        (sent(rows=row()[:-1]), "no whole number of rows"),
        (sent(rows=row(key=1), data=bytes(8)), "has not named"),
        (sent(rows=row(rank=9), data=bytes(8)), "more than 8 dimensions"),
        (sent(rows=row(offset=8), data=bytes(8)), "not there"),
        (sent(rows=row(offset=-8), data=bytes(8)), "not there"),
        (sent(rows=row(offset=4, nbytes=4, dims=(1,)), data=bytes(8)), "not there"),
        (sent(rows=row(nbytes=2**62, dims=(2**60,)), data=bytes(8)), "not there"),
        (sent(rows=row(dims=(3,)), data=bytes(8)), "does not fit"),
        (sent(rows=row(dims=(-2,)), data=bytes(8)), "does not fit"),
        (sent(rows=row(rank=2, dims=(2**33, 2**31)), data=bytes(8)), "does not fit"),
    ],
)
def test_batches_that_cannot_be_are_refused(event, complaint):
    with pytest.raises(WireError, match=complaint):
        BatchDecoder().decode(event)


def test_names_that_cannot_be_and_floods_of_tables_are_refused():
    def block(**key):
        made = KeyBlock()
        made.keys.add(**{"node_name": "x", "debug_op": "Op", "device": CPU, "dtype": "float32", **key})
        return made.SerializeToString()

    for bad in (block(node_name=""), block(output_slot=-1), block(node_name="x" * 5000), block() + block()):
        with pytest.raises(WireError):
            BatchDecoder().decode(sent(bad))
    decoder = BatchDecoder()
    with pytest.raises(WireError, match="more than 64 tables"):
        for number in range(100):
            decoder.decode(sent(block(), table=number))


@settings(max_examples=300)
@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(block, rows, data):
    for event in (sent(block, rows, data), sent(None, rows[: len(rows) // 96 * 96], data)):
        try:
            BatchDecoder().decode(event)
        except WireError:
            pass
    try:
        BatchDecoder().decode(Event.FromString(b"".join(own_event(BATCH_PLUGIN, block))))
    except WireError:
        pass
