"""Events: whatever is split is joined again, and what was never split so is refused (F5–F9, F17)."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensortap.records import Record, RunInfo
from tensortap.wire.debug_service import Event, WireError
from tensortap.wire.events import (
    GRAPH,
    METADATA,
    OTHER,
    RUN_END,
    TENSOR,
    GraphJoiner,
    RunEnding,
    StreamMetadata,
    TensorJoiner,
    graph_events,
    kind_of,
    metadata_event,
    read_metadata,
    read_run_end,
    run_end_event,
    tensor_events,
)
from tensortap.wire.values import as_bytes
from tests.store.sample import CPU, INFO, START, record, records

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
dtypes = st.sampled_from(["float32", "float64", "int8", "bool", "bfloat16", "complex64", "float8_e4m3fn"])
shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)


def value_of(dtype, shape, seed):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return np.random.default_rng(seed).integers(0, 2, shape).astype(kind)


numbers = st.builds(
    lambda node, slot, op, dtype, shape, seed: record(
        node, value_of(dtype, shape, seed), slot=slot, op=op, dtype=dtype
    ),
    names,
    st.integers(0, 3),
    st.sampled_from(["DebugIdentity", "DebugNanCount"]),
    dtypes,
    shapes,
    st.integers(0, 9),
)
strings = st.lists(st.binary(max_size=12), max_size=8).map(
    lambda items: Record("s", 0, "DebugIdentity", CPU, START, "string", (len(items),), items)
)
empty_ones = st.builds(
    lambda shape: Record("e", 0, "DebugIdentity", CPU, START, "float32", (1, *shape), None, False),
    st.lists(st.integers(1, 5), max_size=3).map(tuple),
)


def same(ours, theirs):
    def plain(each):
        data = each.data if each.data is None or each.dtype == "string" else bytes(as_bytes(each.data))
        return (*(getattr(each, name) for name in Record.__slots__ if name != "data"), data)

    return plain(ours) == plain(theirs)


@given(numbers | strings | empty_ones, st.integers(16, 64), st.randoms())
def test_a_record_arrives_however_it_is_chunked_and_shuffled(sent, max_bytes, random):
    """F9."""
    messages = list(tensor_events(sent, max_bytes))
    random.shuffle(messages)
    joiner, events = TensorJoiner(), [Event.FromString(message) for message in messages]
    *before, arrived = [joiner.add(event) for event in events]
    assert before == [None] * len(before)
    assert same(sent, arrived)
    assert joiner.pending_bytes == 0
    assert {kind_of(event) for event in events} == {TENSOR}


def test_every_chunk_carries_shape_dtype_and_time_and_stays_below_the_limit():
    """F9."""
    messages = [
        Event.FromString(each) for each in tensor_events(record("w", np.ones(1000, np.float32)), 1024)
    ]
    assert len(messages) == 4
    for index, event in enumerate(messages):
        (value,) = event.summary.value
        content = json.loads(value.metadata.plugin_data.content)
        assert content == {"device": CPU, "outputSlot": 0, "numChunks": 4, "chunkIndex": index}
        assert value.metadata.plugin_data.plugin_name == "debugger"
        assert (value.node_name, value.tag) == ("w:0:DebugIdentity", "w")
        assert [dim.size for dim in value.tensor.tensor_shape.dim] == [1000]
        assert value.tensor.dtype == 1
        assert event.wall_time == START
        assert len(value.tensor.tensor_content) <= 1024


def test_an_empty_tensor_is_one_chunk_and_a_string_is_never_split():
    """F9."""
    assert len(list(tensor_events(record("e", np.zeros((0, 4), np.float32))))) == 1
    sample = Record("s", 0, "DebugIdentity", CPU, START, "string", (2,), [b"x" * 90, b"y" * 90])
    assert len(list(tensor_events(sample, 100))) == 2
    with pytest.raises(ValueError, match="a string of 90 bytes is more than a message holds"):
        list(tensor_events(sample, 50))


def test_what_the_field_has_no_number_for_is_widened():
    sample = record("q", np.array([1, -2], ml_dtypes.int4), dtype="int4")
    (message,) = tensor_events(sample)
    arrived = TensorJoiner().add(Event.FromString(message))
    assert (arrived.dtype, np.frombuffer(arrived.data, np.int8).tolist()) == ("int8", [1, -2])
    with pytest.raises(ValueError, match="quaternion has no form"):
        list(tensor_events(Record("q", 0, "DebugIdentity", CPU, START, "quaternion", (1,), bytes(16))))


@given(st.binary(min_size=1, max_size=300), st.integers(1, 100), st.integers(0, 2**50), st.randoms())
def test_a_graph_arrives_however_it_is_chunked_and_shuffled(graph, max_bytes, time, random):
    """F8: its bytes may hold commas and bars too."""
    messages = list(graph_events(graph, CPU, time, max_bytes))
    random.shuffle(messages)
    events = [Event.FromString(message) for message in messages]
    joiner = GraphJoiner()
    *before, arrived = [joiner.add(event) for event in events]
    assert before == [None] * len(before)
    assert (arrived.content, arrived.device, arrived.timestamp) == (graph, CPU, time)
    assert {kind_of(event) for event in events} == {GRAPH}


def test_metadata_says_which_run_it_is():
    """F7: tfdbg's own keys on top, ours under one of their own."""
    sent = StreamMetadata(INFO, "/job-a", "launch-1", "host", 17)
    event = Event.FromString(metadata_event(sent))
    assert kind_of(event) == METADATA
    assert read_metadata(event) == sent
    facts = json.loads(event.log_message.message)
    assert {key: facts[key] for key in facts if key != "tensortap"} == {
        "global_step": 42,
        "session_run_index": 3,
        "executor_step_index": 3,
        "input_names": ["x:0"],
        "output_names": ["loss:0"],
        "target_nodes": ["train"],
        "grpc_path": "/job-a",
    }


def test_metadata_of_other_clients_is_understood():
    event = Event(wall_time=5.0)
    event.log_message.message = (
        '{"global_step":-1,"session_run_index":2,"executor_step_index":0,"grpc_path":""}'
    )
    assert read_metadata(event) == StreamMetadata(RunInfo(2, -1, 5))


def test_how_a_run_ended():
    sent = RunEnding("ValueError: no", {"dropped": 3}, {CPU: "abc"})
    event = Event.FromString(run_end_event(sent))
    assert kind_of(event) == RUN_END
    assert read_run_end(event) == sent
    assert kind_of(Event()) == OTHER


def chunk(index, count, content=b"abcd", key="x:0:DebugIdentity", shape=(100,), **facts):
    event = Event(wall_time=1.0)
    value = event.summary.value.add(node_name=key)
    plugin = {"device": CPU, "outputSlot": 0, "numChunks": count, "chunkIndex": index, **facts}
    value.metadata.plugin_data.content = json.dumps(plugin).encode()
    value.tensor.dtype = 1
    value.tensor.tensor_content = content
    for size in shape:
        value.tensor.tensor_shape.dim.add(size=size)
    return event


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (chunk(5, 5), "Chunk 5 of 5 cannot be"),
        (chunk(-1, 5), "Chunk -1 of 5 cannot be"),
        (chunk(0, 10**30), "too large"),
        (chunk(0, "many"), "must be a whole number"),
        (chunk(0, 1, device=7), "must be text"),
        (chunk(0, 1, device="\ud800"), "is no text"),
        (chunk(0, 1), "4 bytes cannot be float32"),
        (chunk(0, 1, shape=(-1,)), "is no shape"),
        (chunk(0, 1, shape=(1,) * 65), "is no shape"),
        (chunk(0, 1, key="no key"), "is no watch key"),
        (chunk(0, 1, key="x:99999999999:Op"), "is no watch key"),
        (chunk(0, 1, key="x" * 5000 + ":0:Op"), "too long"),
    ],
)
def test_tensors_that_cannot_be_are_refused(event, complaint):
    with pytest.raises(WireError, match=complaint):
        TensorJoiner().add(event)


def test_contradicting_chunks_and_floods_are_refused():
    joiner = TensorJoiner(max_bytes=10, max_pending=2)
    assert joiner.add(chunk(0, 3)) is None
    with pytest.raises(WireError, match="contradicts"):
        joiner.add(chunk(0, 3))
    with pytest.raises(WireError, match="contradicts"):
        joiner.add(chunk(1, 4))
    assert joiner.add(chunk(1, 3)) is None
    with pytest.raises(WireError, match="More than 10 bytes wait"):
        joiner.add(chunk(0, 2, key="y:0:DebugIdentity"))
    with pytest.raises(WireError, match="More than 2 things wait"):
        joiner.add(chunk(0, 2, b"", key="z:0:DebugIdentity"))


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_before_a_graph_are_read_or_refused(content):
    event = Event(graph_def=content)
    try:
        GraphJoiner().add(event)
    except WireError:
        pass


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5)
)
def test_any_json_as_metadata_is_read_or_refused(anything):
    for facts in (
        anything,
        {"session_run_index": anything, "tensortap": anything},
        {"tensortap": {"task": anything}},
    ):
        event = Event()
        event.log_message.message = json.dumps(facts)
        try:
            read_metadata(event)
        except WireError:
            pass


def test_the_sample_run_arrives():
    joiner = TensorJoiner()
    for sent in records():
        messages = [Event.FromString(each) for each in tensor_events(sent)]
        assert same(sent, joiner.add(messages[0]))
