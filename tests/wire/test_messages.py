"""Our messages are the field's own, number by number, and live beside TensorFlow's and TensorBoard's in one process."""

from __future__ import annotations

import copy
import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from tensorboard.compat.proto import event_pb2, graph_pb2

import tensortap
from tensortap.wire import messages

SOURCE = Path(tensortap.__file__).parent.parent
PROTOS = SOURCE / "tensortap" / "wire" / "proto"

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="compares with TensorFlow, which is not installed"
)

OURS = "import tensortap.wire.messages"
TENSORBOARD = "import tensorboard.compat.proto.event_pb2"
TENSORFLOW = "import tensorflow"
# The messages of TensorFlow alone, without the seconds that the rest of it takes to import.
TENSORFLOW_MESSAGES = """
import types
found = importlib.util.find_spec("tensorflow")
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
sys.modules["tensorflow"].__path__ = found.submodule_search_locations
"""

COMPARE = """
from google.protobuf.internal import api_implementation
from tensortap.wire import debug_service
from tensortap.wire import messages as ours

HOMES = {
    "Event": "tensorflow.core.util.event_pb2", "Summary": "tensorflow.core.framework.summary_pb2",
    "SessionLog": "tensorflow.core.util.event_pb2", "HistogramProto": "tensorflow.core.framework.summary_pb2",
    "TaggedRunMetadata": "tensorflow.core.util.event_pb2", "GraphDef": "tensorflow.core.framework.graph_pb2",
    "MetaGraphDef": "tensorflow.core.protobuf.meta_graph_pb2", "TensorProto": "tensorflow.core.framework.tensor_pb2",
    "StepStats": "tensorflow.core.framework.step_stats_pb2", "RunMetadata": "tensorflow.core.protobuf.config_pb2",
    "EventReply": "tensorflow.core.debug.debug_service_pb2", "CallTraceback": "tensorflow.core.debug.debug_service_pb2",
    "DebuggedSourceFile": "tensorflow.core.protobuf.debug_pb2",
    "DebuggedSourceFiles": "tensorflow.core.protobuf.debug_pb2",
    "CodeDef": "tensorflow.core.profiler.tfprof_log_pb2", "OpLogProto": "tensorflow.core.profiler.tfprof_log_pb2",
}
OURS_ALONE = {"BatchMessage", "KeyBlock", "DecodeError"}
assert set(ours.__all__) - OURS_ALONE == set(HOMES), "a message is not compared"


def facts(field):
    inner = field.message_type or field.enum_type
    oneof = field.containing_oneof.name if field.containing_oneof else None
    return (field.number, field.type, bool(field.is_repeated), inner.name if inner is not None else None, oneof)


def compare(mine, theirs, seen):
    # Every field that we have is theirs; they may have more.
    if mine.full_name in seen:
        return
    seen.add(mine.full_name)
    for field in mine.fields:
        other = theirs.fields_by_name[field.name]
        assert facts(field) == facts(other), (mine.name, field.name, facts(field), facts(other))
        if field.message_type is not None:
            compare(field.message_type, other.message_type, seen)
        if field.enum_type is not None:
            values, others = field.enum_type.values_by_name, other.enum_type.values_by_name
            for name in set(values) & set(others):
                assert values[name].number == others[name].number, name
            assert set(others) <= set(values), sorted(set(others) - set(values))


def theirs_and_tensorboards():
    for name, home in HOMES.items():
        yield name, getattr(importlib.import_module(home), name)
        short = home.rpartition(".")[2]
        if importlib.util.find_spec(f"tensorboard.compat.proto.{short}") is not None:
            yield name, getattr(importlib.import_module(f"tensorboard.compat.proto.{short}"), name)


kinds = dict.fromkeys(HOMES, 0)
for name, other in theirs_and_tensorboards():
    kinds[name] += 1
    compare(getattr(ours, name).DESCRIPTOR, other.DESCRIPTOR, set())
    assert other is not getattr(ours, name)
assert min(kinds.values()) >= 1 and max(kinds.values()) == 2


def event(Event):
    made = Event(wall_time=17.0, step=3)
    value = made.summary.value.add(tag="loss", node_name="fc")
    value.tensor.dtype = 1
    value.tensor.tensor_shape.dim.add(size=2)
    value.tensor.tensor_content = bytes(8)
    value.metadata.plugin_data.plugin_name = "debugger"
    return made


def graph(GraphDef):
    made = GraphDef()
    node = made.node.add(name="fc", op="MatMul", input=["x", "w:1", "^init"], device="/device:CPU:0")
    node.attr["T"].type = 1
    node.attr["_output_shapes"].list.shape.add().dim.add(size=-1)
    node.attr["lr"].f = 0.5
    return made


for name, build in (("Event", event), ("GraphDef", graph)):
    classes = [getattr(ours, name), *(other for found, other in theirs_and_tensorboards() if found == name)]
    contents = {build(each).SerializeToString(deterministic=True) for each in classes}
    assert len(contents) == 1, (name, contents)
    for one in classes:
        for other in classes:
            again = other.FromString(build(one).SerializeToString())
            assert again == build(other), (name, one, other)

file = importlib.import_module(HOMES["EventReply"]).DESCRIPTOR
service = file.services_by_name["EventListener"]
methods = [f"/{service.full_name}/{method.name}" for method in service.methods]
assert methods == [debug_service.SEND_EVENTS, debug_service.SEND_TRACEBACKS, debug_service.SEND_SOURCE_FILES]
print("the same", api_implementation.Type())
"""


@needs_tensorflow
@pytest.mark.parametrize(
    ("order", "runtime"),
    [
        ((OURS, TENSORBOARD, TENSORFLOW), "upb"),
        ((TENSORFLOW, TENSORBOARD, OURS), "upb"),
        ((TENSORBOARD, OURS, TENSORFLOW), "upb"),
        ((OURS, TENSORFLOW_MESSAGES, TENSORBOARD), "python"),
        ((TENSORFLOW_MESSAGES, OURS, TENSORBOARD), "python"),
    ],
    ids=[
        "ours first",
        "TensorFlow first",
        "TensorBoard first",
        "ours first in Python",
        "ours last in Python",
    ],
)
def test_all_three_live_in_one_process(order, runtime):  # F1–F4
    program = "\n".join(["import importlib, importlib.util, sys", *order, COMPARE])
    environment = {
        **os.environ,
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": runtime,
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"the same {runtime}"


def test_the_description_is_that_of_the_proto_files(tmp_path):
    made = tmp_path / "messages.binpb"
    files = sorted(map(str, PROTOS.glob("*.proto")))
    options = [f"-I{SOURCE}", "--include_imports", f"--descriptor_set_out={made}"]
    # In a process of its own: the compiler brings a protobuf of its own, which another one in the process disturbs.
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *files], check=True)
    kept, fresh = (
        descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        for path in (PROTOS / "messages.binpb", made)
    )
    assert kept == fresh, "run `make protos`"


def test_what_we_have_no_field_for_stays_in_the_message():
    theirs = graph_pb2.GraphDef()
    theirs.node.add(name="fc").experimental_debug_info.original_node_names.append("before")
    theirs.library.function.add().signature.name = "f"
    ours = messages.GraphDef.FromString(theirs.SerializeToString())
    ours.node[0].op = "MatMul"
    again = graph_pb2.GraphDef.FromString(ours.SerializeToString())
    assert again.node[0].experimental_debug_info.original_node_names == ["before"]
    assert again.library.function[0].signature.name == "f"
    assert again.node[0].op == "MatMul"


def test_messages_that_users_get_can_be_pickled_and_copied():
    graph, stats = messages.GraphDef(), messages.StepStats()
    graph.node.add(name="fc").attr["axis"].i = 1
    stats.dev_stats.add(device="/device:CPU:0").thread_names[3] = "main"
    for message in (graph, stats):
        assert type(message).__module__ == "tensortap.wire.messages"
        assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message


def test_events_of_each_are_read_by_the_other():
    theirs = event_pb2.Event(wall_time=1.5, step=7, file_version="brain.Event:2")
    ours = messages.Event.FromString(theirs.SerializeToString())
    assert (ours.wall_time, ours.step, ours.file_version) == (1.5, 7, "brain.Event:2")
    assert event_pb2.Event.FromString(ours.SerializeToString()) == theirs
