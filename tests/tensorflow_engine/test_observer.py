"""Seeing the tensors of executed graphs, by both observers; in one process, as importing TensorFlow takes seconds."""

from __future__ import annotations

import gc
import os
import threading
from collections import defaultdict

import numpy as np
import pytest

from tensortap.errors import InvalidArgumentError, NativeBuildError
from tensortap.ops import kernel
from tensortap.pill import ELEMENTS, MAX, NAN, PILL_SIZE
from tensortap.records import KeyTable, RecordBatch, RecordKey
from tests.tensorflow import import_tensorflow

tf = import_tensorflow()
v1 = tf.compat.v1

from tensortap.engines.tensorflow.observer import function_calls, library  # noqa: E402
from tensortap.engines.tensorflow.observer.choice import make_observer  # noqa: E402
from tensortap.engines.tensorflow.observer.interface import Flag, Kind, Lane  # noqa: E402

PILLS, VALUES = [Lane(Kind.PILL)], [Lane(Kind.VALUE)]


@pytest.fixture(params=["native", "portable"], scope="module")
def observer(request):
    return make_observer(request.param)


@pytest.fixture(scope="module")
def native():
    return make_observer("native")


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def everything(executed):
    return [1] * len(executed.outputs)


def only(*names):
    return lambda executed: [executed.nodes[place].name in names for place, slot in executed.outputs]


def fed(value, name="fed"):
    """A placeholder that every run is fed the same for; a constant would be folded."""
    value = np.asarray(value)
    dtype = tf.string if value.dtype == object else value.dtype
    placeholder = v1.placeholder(dtype, value.shape, name=name)
    v1.add_to_collection("fed", (placeholder, value))
    return placeholder


def all_fed():
    return dict(v1.get_collection("fed"))


def run(session, watch, fetches, feeds=None):
    """One watched run: what it returned, and what was seen."""
    armed, metadata = watch.arm(), v1.RunMetadata()
    feeds = {**dict(session.graph.get_collection("fed")), **(feeds or {})}
    try:
        result = session.run(fetches, feeds, options=armed.merge_into(), run_metadata=metadata)
    finally:
        seen = armed.finish(metadata)
    return result, seen


def name_of(watch, number):
    tensor = watch.tensors[number]
    return f"{watch.graphs[tensor.graph].nodes[tensor.node].name}:{tensor.slot}"


def dtype_of(watch, number):
    tensor = watch.tensors[number]
    node = watch.graphs[tensor.graph].nodes[tensor.node]
    return (*node.dtypes, *node.written)[tensor.slot]


def records(watch, seen, lane=0):
    """The records of a lane by name: pills as float64, values as bytes, in the order of iterations."""
    found = defaultdict(list)
    for block in seen.blocks:
        memory = bytes(block.data)
        for row, execution in zip(block.rows, block.executions, strict=True):
            if execution["lane"] == lane:
                data = memory[row["offset"] : row["offset"] + row["nbytes"]]
                is_pill = watch.lanes[lane].kind is Kind.PILL
                value = np.frombuffer(data, np.float64) if is_pill else data
                found[name_of(watch, row["key"])].append((int(execution["iteration"]), value))
    return {
        name: [value for _, value in sorted(values, key=lambda pair: pair[0])]
        for name, values in found.items()
    }


def resident():
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def maximum(pills):
    return [float(pill[MAX]) for pill in pills]


# --- what is seen ------------------------------------------------------------------------------------------


def test_every_tensor_has_a_pill_like_that_of_its_value(observer, graph):
    x = v1.placeholder(tf.float32, [2, 3], name="x")
    y = tf.nn.softmax(tf.matmul(x, tf.constant(np.arange(12, dtype=np.float32).reshape(3, 4))), name="y")
    with v1.Session() as session:
        watch = observer.watch(PILLS, everything)
        fed = np.array([[1, -2, 3], [0.5, 0, 7]], np.float32)
        for _ in range(2):
            value, seen = run(session, watch, y, {x: fed})
        pills = records(watch, seen)
        np.testing.assert_array_equal(pills["y:0"][0], kernel.summary(value))
        np.testing.assert_array_equal(pills["_arg_x_0_0:0"][0], kernel.summary(fed))
        assert {"x", "MatMul", "y"} <= {name.partition(":")[0].replace("_arg_x_0_0", "x") for name in pills}


def test_records_become_a_batch_as_they_are(observer, graph):
    y = tf.exp(fed(np.ones((4, 5), np.float32)), name="y")
    with v1.Session() as session:
        watch = observer.watch([*PILLS, *VALUES], lambda executed: [3] * len(executed.outputs))
        value, seen = run(session, watch, y)
    (block,) = seen.blocks
    table = KeyTable()
    pills = block.executions["lane"] == 0
    rows = block.rows.copy()
    for place, row in enumerate(rows):
        node, _, slot = name_of(watch, row["key"]).rpartition(":")
        is_pill = bool(pills[place])
        dtype = "float64" if is_pill else dtype_of(watch, row["key"])
        key = RecordKey(node, int(slot), "DebugNumericSummary" if is_pill else "DebugIdentity", "", dtype)
        rows[place]["key"] = table.add(key)
    batch = {record.watch_key: record for record in RecordBatch(table, rows, block.data)}
    whole = batch["y:0:DebugIdentity"]
    np.testing.assert_array_equal(np.frombuffer(whole.data, np.float32).reshape(whole.shape), value)
    assert np.frombuffer(batch["y:0:DebugNumericSummary"].data, np.float64)[ELEMENTS] == 20


@pytest.mark.parametrize("is_v2", [True, False], ids=["v2", "v1"])
def test_iterations_of_loops_are_numbered(observer, graph, is_v2):
    (v1.enable_control_flow_v2 if is_v2 else v1.disable_control_flow_v2)()
    try:
        start = fed(np.float32(1))
        _, last = tf.while_loop(
            lambda i, x: i < 5,
            lambda i, x: (i + 1, tf.multiply(x, 2.0, name="doubled")),
            (tf.constant(0), start),
        )
    finally:
        v1.enable_control_flow_v2()
    with v1.Session() as session:
        watch = observer.watch(PILLS, everything)
        for _ in range(2):
            value, seen = run(session, watch, last)
        pills = records(watch, seen)
    assert value == 32
    (doubled,) = [name for name in pills if "doubled" in name and "/y" not in name]
    assert maximum(pills[doubled]) == [2, 4, 8, 16, 32]


def test_loops_inside_loops_have_frames_of_their_own(native, graph):
    def inner(x):
        return tf.while_loop(lambda j, y: j < 2, lambda j, y: (j + 1, tf.add(y, 1.0, name="one")), (0, x))[1]

    _, last = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, inner(x)), (0, fed(np.float32(0))))
    with v1.Session() as session:
        watch = native.watch(PILLS, everything)
        value, seen = run(session, watch, last)
    assert value == 6
    (block,) = seen.blocks
    ones = [
        (int(execution["frame"]), int(execution["iteration"]))
        for row, execution in zip(block.rows, block.executions, strict=True)
        if name_of(watch, row["key"]).endswith(("/one:0", "/one_0:0"))
    ]
    assert len(set(ones)) == len(ones) == 6
    assert len({frame for frame, _ in ones}) == 3


def test_only_the_branch_that_ran_is_seen(observer, graph):
    x = v1.placeholder(tf.float32, [], name="x")
    y = tf.cond(x > 0, lambda: tf.sqrt(x, name="root"), lambda: tf.square(x, name="squared"))
    with v1.Session() as session:
        watch = observer.watch(PILLS, everything)
        for _ in range(2):
            value, seen = run(session, watch, y, {x: -3.0})
        pills = records(watch, seen)
        assert value == 9
        assert any("squared" in name for name in pills)
        assert not any("root" in name for name in pills)
        value, seen = run(session, watch, y, {x: 4.0})
        assert value == 2
        assert any("root" in name for name in records(watch, seen))


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "ref"])
def test_variables_are_seen_as_the_run_saw_them(observer, graph, resource):
    weight = v1.get_variable("w", initializer=np.full(3, 2.0, np.float32), use_resource=resource)
    read = tf.multiply(weight, 1.5, name="used")
    with tf.control_dependencies([read]):
        update = v1.assign_add(weight, [1.0, 1.0, 1.0], name="update")
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        watch = observer.watch(PILLS, everything)
        for step in range(20):
            _, seen = run(session, watch, [read, update])
            pills = records(watch, seen)
            assert maximum(pills["used:0"]) == [1.5 * (2 + step)]
            reads = [name for name in pills if name.startswith(("w:", "w/read", "used/ReadVariableOp"))]
            assert reads
            assert all(maximum(pills[name]) == [2 + step] for name in reads)


def test_what_an_update_leaves_in_variables_is_an_output_of_it(native, graph):
    weight = v1.get_variable("w", initializer=np.ones(3, np.float32), use_resource=True)
    loss = tf.reduce_sum(weight * weight)
    train = v1.train.AdamOptimizer(0.5).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        watch = native.watch(PILLS, everything)
        _, seen = run(session, watch, [loss, train])
        after = session.run(weight)
    pills = records(watch, seen)
    (executed,) = watch.graphs
    (adam,) = [node for node in executed.nodes if node.op == "ResourceApplyAdam"]
    assert adam.dtypes == ()
    assert adam.written == ("float32",) * 3
    np.testing.assert_array_equal(pills[f"{adam.name}:0"][0], kernel.summary(after))


INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e5m2",
    "float8_e4m3fn",
    "complex64",
    "complex128",
]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_all_dtypes(observer, graph, dtype):
    kind = tf.dtypes.as_dtype(dtype)
    numbers = np.array([[0, 1, 2], [3, 1, 0]]).astype(kind.as_numpy_dtype)
    x = v1.placeholder(kind, [2, 3], name="x")
    y = tf.identity(x)
    with v1.Session() as session:
        watch = observer.watch([*PILLS, *VALUES], lambda executed: [3] * len(executed.outputs))
        for _ in range(2):
            _, seen = run(session, watch, y, {x: numbers})
        np.testing.assert_array_equal(records(watch, seen)["_arg_x_0_0:0"][0], kernel.summary(numbers))
        assert records(watch, seen, lane=1)["_arg_x_0_0:0"] == [numbers.tobytes()]


def test_strings_and_many_dimensions_lie_apart_and_handles_have_a_reason(observer, graph):
    words = tf.strings.join([fed(np.array([["a", ""], ["ccc", "dd"]], object)), "!"], name="words")
    deep = tf.add(fed(np.ones((1,) * 8 + (2,), np.float32)), 1.0, name="deep")
    weight = v1.get_variable("w", initializer=np.ones(3, np.float32), use_resource=True)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        watch = observer.watch([*PILLS, *VALUES], lambda executed: [3] * len(executed.outputs))
        for _ in range(2):
            _, seen = run(session, watch, [words, deep, weight])
    apart = {name_of(watch, each.tensor): each for block in seen.blocks for each in block.apart}
    assert apart["words:0"].shape == (2, 2)
    assert list(apart["words:0"].data) == [b"a!", b"!", b"ccc!", b"dd!"]
    assert apart["deep:0"].shape == (1,) * 8 + (2,)
    assert np.frombuffer(apart["deep:0"].data, np.float32).tolist() == [2, 2]
    assert records(watch, seen)["deep:0"][0][PILL_SIZE:].tolist() == [1] * 8 + [2]
    reasons = {name_of(watch, number): tensor.unreadable for number, tensor in enumerate(watch.tensors)}
    assert reasons["words:0"] == "strings have no pill"
    assert reasons["w:0"] == "a resource has no elements"
    assert reasons["deep:0"] == ""


# --- what is chosen and kept -------------------------------------------------------------------------------


def test_one_tensor_and_nothing_else(observer, graph):
    y = tf.exp(tf.square(fed(np.float32(3)), name="squared"), name="y")
    with v1.Session() as session:
        watch = observer.watch(PILLS, only("squared"))
        _, seen = run(session, watch, y)
        assert {name: maximum(pills) for name, pills in records(watch, seen).items()} == {"squared:0": [9]}


def test_bounds_and_healthy_pills_that_are_muted(observer, graph):
    x = v1.placeholder(tf.float32, [2], name="x")
    y = tf.exp(x, name="y")
    lanes = [Lane(Kind.PILL, mute_if_healthy=True), Lane(Kind.PILL, upper_bound=2.0)]
    with v1.Session() as session:
        watch = observer.watch(lanes, lambda executed: [3 * chosen for chosen in only("y")(executed)])
        _, seen = run(session, watch, y, {x: [0.0, 5.0]})
        assert (records(watch, seen), seen.muted) == ({}, (1, 0))
        assert records(watch, seen, lane=1)["y:0"][0][7] == 1  # e**5 counts as +inf
        _, seen = run(session, watch, y, {x: [0.0, 500.0]})
        assert (list(records(watch, seen)), seen.muted) == (["y:0"], (0, 0))
        assert seen.blocks[0].has_bad


def kept(watch, seen):
    return [
        (
            name_of(watch, row["key"]),
            Flag(int(execution["flags"])).name,
            bytes(block.data)[row["offset"] :][: row["nbytes"]],
        )
        for block in seen.blocks
        for row, execution in zip(block.rows, block.executions, strict=True)
        if execution["lane"] == -1
    ]


def test_what_makes_a_bad_value_is_kept_whole_once(observer, graph):
    x = v1.placeholder(tf.float32, [2], name="x")
    y = tf.add(tf.math.log(tf.subtract(x, 1.0, name="less"), name="log"), 1.0, name="after")
    with v1.Session() as session:
        watch = observer.watch(PILLS, everything, keep_bad=4)
        for _ in range(2):
            _, seen = run(session, watch, y, {x: [2.0, 3.0]})
            assert kept(watch, seen) == []
        value, seen = run(session, watch, y, {x: [0.5, 3.0]})
        assert np.isnan(value[0])
        less, log = np.array([-0.5, 2], np.float32), np.log(np.array([np.nan, 2], np.float32))
        assert kept(watch, seen)[0] == ("less:0", "KEPT_INPUT", less.tobytes())
        (name, flag, data), *others = kept(watch, seen)[1:]
        assert (name, flag, others) == ("log:0", "KEPT_OUTPUT", [])  # what comes after inherits it
        np.testing.assert_array_equal(np.frombuffer(data, np.float32), log)
        _, seen = run(session, watch, y, {x: [0.5, 3.0]})
        assert kept(watch, seen) == []
        assert records(watch, seen)["log:0"][0][NAN] == 1


def test_what_only_hands_a_bad_value_on_or_comes_with_it_makes_none(observer, graph):
    mask = tf.constant([0.0, -np.inf], name="mask")
    y = tf.reshape(tf.identity(fed(np.array([1.0, np.nan], np.float32))) + mask, [2, 1], name="y")
    with v1.Session() as session:
        watch = observer.watch(PILLS, everything, keep_bad=4)
        for _ in range(2):
            _, seen = run(session, watch, y)
            assert seen.blocks[0].has_bad
            assert kept(watch, seen) == []


def test_a_choice_that_fails_harms_nothing(native, graph, caplog):
    y = tf.exp(fed(np.float32(0)), name="y")

    def choose(executed):
        raise LookupError("which?")

    with v1.Session() as session:
        watch = native.watch(PILLS, choose)
        value, seen = run(session, watch, y)
        assert (value, seen.blocks, seen.faults) == (1.0, (), 1)
        assert "which?" in caplog.text
        value, seen = run(session, watch, y)
        assert (value, seen.faults) == (1.0, 0)


def test_values_beyond_the_limit_are_dropped_and_counted_unless_they_are_taken(native, graph):
    x = fed(np.zeros(1 << 20, np.float32))
    y = x
    for _ in range(8):
        y = tf.sin(y + 1.0)
    with v1.Session() as session:
        watch = native.watch(VALUES, everything, value_limit=20 << 20)
        _, seen = run(session, watch, y)
        assert seen.dropped > 0
        assert 0 < sum(len(block.data) for block in seen.blocks) <= 21 << 20
        taken = []
        watch = native.watch(
            VALUES, everything, value_limit=20 << 20, on_full=lambda: taken.extend(armed.take())
        )
        armed = watch.arm()
        session.run(y, all_fed(), options=armed.merge_into())
        seen = armed.finish()
        assert seen.dropped == 0
        assert sum(int(block.rows["nbytes"].sum()) for block in (*taken, *seen.blocks)) > 64 << 20


# --- what is not disturbed ---------------------------------------------------------------------------------


def make_training():
    """A step with dropout, whose results depend on everything."""
    v1.set_random_seed(7)
    x = v1.random_normal([16, 8])
    dropped = tf.nn.dropout(tf.nn.relu(tf.matmul(x, weights("a", 8, 16))), rate=0.3, seed=3)
    loss = tf.reduce_mean(tf.square(tf.matmul(dropped, weights("b", 16, 1)) - 1.0))
    return loss, v1.train.AdamOptimizer(0.05).minimize(loss)


def weights(name, *shape):
    numbers = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return v1.get_variable(name, initializer=numbers, use_resource=True)


def test_training_is_the_same_to_the_last_bit(observer):
    def train(every):
        with tf.Graph().as_default():
            loss, update = make_training()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                watch = observer.watch(
                    [*PILLS, *VALUES], lambda executed: [3] * len(executed.outputs), keep_bad=8
                )
                losses = []
                for step in range(12):
                    if every and step % every == 0:
                        (value, _), seen = run(session, watch, [loss, update])
                        assert seen.blocks
                    else:
                        value, _ = session.run([loss, update])
                    losses.append(value.tobytes())
                return losses, [value.tobytes() for value in session.run(v1.global_variables())]

    plain = train(0)
    assert train(1) == plain
    assert train(2) == plain


def test_runs_that_are_not_watched_leave_nothing_and_graphs_are_made_once(observer, graph):
    y = tf.exp(fed(np.float32(0)), name="y")
    asked = []
    with v1.Session() as session:
        watch = observer.watch(PILLS, lambda executed: asked.append(executed) or everything(executed))
        for _ in range(3):
            _, seen = run(session, watch, y)
            assert seen.blocks
            session.run(y, all_fed())
        armed = watch.arm()
        session.run(y, all_fed())
        assert armed.finish().blocks == ()
        assert len(asked) == len(watch.graphs) == 1


def test_memory_stays_as_it_is(observer, graph):
    x = fed(np.ones((256, 256), np.float32))
    y = x
    for _ in range(5):
        y = tf.tanh(tf.matmul(y, x) * 0.01)
    with v1.Session() as session:
        watch = observer.watch([*PILLS, *VALUES], lambda executed: [3] * len(executed.outputs))

        def runs(count):
            for _ in range(count):
                run(session, watch, y)
            gc.collect()
            return resident()

        count = 300 if observer.name == "native" else 30
        before = runs(count // 3)
        assert runs(count) - before < 8 << 20


def test_a_run_that_fails_leaves_what_it_did_and_the_next_one_is_whole(observer, graph):
    x = v1.placeholder(tf.float32, [2], name="x")
    halved = tf.multiply(x, 0.5, name="halved")
    with tf.control_dependencies([v1.Assert(tf.reduce_all(halved > 0), ["not positive"])]):
        y = tf.sqrt(halved, name="root")
    with v1.Session() as session:
        watch = observer.watch(PILLS, everything)
        run(session, watch, y, {x: [2.0, 8.0]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="not positive"):
            run(session, watch, y, {x: [2.0, -8.0]})
        value, seen = run(session, watch, y, {x: [2.0, 8.0]})
        assert value.tolist() == [1, 2]
        assert maximum(records(watch, seen)["root:0"]) == [2]
        assert len(records(watch, seen)["halved:0"]) == 1


def test_runs_that_overlap_are_told_apart(observer, graph):
    x = v1.placeholder(tf.float32, [], name="x")
    barrier = threading.Barrier(2)

    def meet(value):
        barrier.wait(60)
        return value

    y = tf.add(v1.py_func(meet, [x * 2.0], tf.float32, stateful=True), 1.0, name="y")
    results = {}
    with v1.Session() as session:
        watch = observer.watch(PILLS, everything, graph=graph)

        def one(number):
            for _ in range(2):
                _, seen = run(session, watch, y, {x: number})
            results[number] = maximum(records(watch, seen)["y:0"])

        threads = [threading.Thread(target=one, args=(number,)) for number in (1.0, 2.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {1.0: [3], 2.0: [5]}


def test_a_hook_inside_a_monitored_session(observer, graph):
    loss, update = make_training()
    step = v1.train.get_or_create_global_step()
    counted = []

    class Hook(v1.train.SessionRunHook):
        def begin(self):
            self.watch = observer.watch(PILLS, everything)
            self.armed = None

        def before_run(self, context):
            self.armed = self.watch.arm() if len(counted) % 2 == 0 else None
            options = None if self.armed is None else self.armed.merge_into()
            return v1.train.SessionRunArgs(step, options=options)

        def after_run(self, context, values):
            seen = None if self.armed is None else self.armed.finish(values.run_metadata)
            counted.append(0 if seen is None else sum(len(block.rows) for block in seen.blocks))

    with v1.train.MonitoredSession(hooks=[Hook()]) as session:
        for _ in range(6):
            session.run([loss, update])
    assert counted[1::2] == [0, 0, 0]
    assert counted[2] == counted[4] > 20


def test_tensorflows_own_debugger_works_beside_it(native, graph, tmp_path):
    y = tf.exp(fed(np.float32(0)), name="y")
    with v1.Session() as session:
        watch = native.watch(PILLS, everything)
        armed, theirs = watch.arm(), v1.RunOptions()
        theirs.debug_options.debug_tensor_watch_opts.add(
            node_name="y", output_slot=0, debug_ops=["DebugIdentity"], debug_urls=[f"file://{tmp_path}"]
        )
        session.run(y, all_fed(), options=armed.merge_into(theirs))
        assert "y:0" in records(watch, armed.finish())
        assert list(tmp_path.rglob("y_0_DebugIdentity_*"))


# --- functions ---------------------------------------------------------------------------------------------


def call(watch, function, *arguments):
    armed = watch.arm()
    with armed.functions():
        result = function(*arguments)
    return result, armed.finish()


def test_functions_are_watched_without_being_traced_again(native):
    @tf.function(experimental_attributes={"_noinline": True})
    def inner(x):
        return tf.math.log(x, name="log")

    @tf.function
    def outer(x):
        for _ in tf.range(3):
            x = tf.multiply(x, 2.0, name="doubled")
        return inner(x)

    x = tf.constant([1.0, 2.0])
    watch = native.watch(PILLS, everything)
    plain = outer(x)
    result, seen = call(watch, outer, x)
    np.testing.assert_array_equal(result, plain)
    pills = records(watch, seen)
    (doubled,) = [name for name in pills if "doubled" in name and "/y" not in name]
    assert maximum(pills[doubled]) == [4, 8, 16]
    assert "log:0" in pills
    (body,) = [executed for executed in watch.graphs if "inner" in executed.function]
    assert "Log" in {node.op for node in body.nodes}
    assert outer.experimental_get_tracing_count() == 1
    for _ in range(3):
        outer(x)
        _, again = call(watch, outer, x)
        assert records(watch, again).keys() == pills.keys()
    assert len(watch.graphs) == 2


def test_loops_and_branches_that_are_not_lowered_are_functions_too(native, monkeypatch):
    from tensorflow.python.ops import control_flow_util_v2

    monkeypatch.setattr(control_flow_util_v2, "maybe_set_lowering_attr", lambda *arguments: None)

    def loop(x):
        def body(i, y):
            return i + 1, tf.cond(y > 3, lambda: tf.multiply(y, 10.0, name="ten"), lambda: y * 2.0)

        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    def tens(seen):
        found = records(watch, seen)
        return [maximum(pills) for name, pills in found.items() if name.endswith(("ten:0", "ten_0:0"))]

    watch = native.watch(PILLS, everything)
    result, seen = call(watch, tf.function(loop), tf.constant(1.0))
    assert result.numpy() == 40
    assert tens(seen) == [[40]]
    with tf.Graph().as_default():
        last = loop(fed(np.float32(1)))
        with v1.Session() as session:
            watch = native.watch(PILLS, everything)
            for _ in range(2):
                assert session.run(last, all_fed()) == 40
                value, seen = run(session, watch, last)
                assert value == 40
                assert tens(seen) == [[40]]


def test_the_innermost_of_two_watches_sees_a_call(native):
    @tf.function
    def f(x):
        return tf.exp(x, name="e")

    outer, inner = native.watch(PILLS, everything), native.watch(PILLS, everything)
    first, second = outer.arm(), inner.arm()
    with first.functions():
        f(tf.zeros([2]))
        with second.functions():
            f(tf.ones([2]))
        f(tf.zeros([2]))
    f(tf.zeros([2]))
    assert maximum(records(outer, first.finish())["e:0"]) == [1, 1]
    assert maximum(records(inner, second.finish())["e:0"]) == pytest.approx([np.e])


def test_functions_that_are_watched_draw_the_same_random_numbers(native):
    function_calls.follow()

    def draw(pattern):
        tf.random.set_seed(5)

        @tf.function
        def step(x):
            return x + tf.random.normal([3], seed=2) + tf.nn.dropout(tf.ones([3]), 0.5, seed=4)

        watch = native.watch(PILLS, everything, keep_bad=2)
        x = tf.zeros([3])
        return [(call(watch, step, x)[0] if watched else step(x)).numpy().tolist() for watched in pattern]

    assert draw([True, False, False, True, True]) == draw([False] * 5)


def test_watches_that_are_over_are_forgotten_by_functions(native):
    weights = tf.ones([512, 512])

    @tf.function
    def f(x):
        for _ in range(20):
            x = tf.tanh(tf.matmul(x, weights))
        return x

    def watched(times):
        for _ in range(times):
            watch = native.watch(PILLS, everything)
            _, seen = call(watch, f, weights)
            assert seen.blocks
            watch.close()
            del watch, seen
        gc.collect()
        return resident()

    before = watched(20)
    assert watched(60) - before < 8 << 20


def test_a_model_of_keras(native):
    keras = tf.keras
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Dense(4, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    watch = native.watch(PILLS, everything)
    _, seen = call(watch, lambda: model.fit(x, y, epochs=2, batch_size=4, verbose=0))
    pills = records(watch, seen)
    assert len(pills) > 100
    assert any("mse" in name.lower() or "mean_squared" in name.lower() for name in pills)


def test_compiled_functions_stay_compiled(native):
    @tf.function(jit_compile=True)
    def f(x):
        return tf.reduce_sum(tf.exp(x))

    watch = native.watch(PILLS, everything)
    x = tf.zeros([4])
    result, seen = call(watch, f, x)
    assert result.numpy() == 4
    assert seen.faults == 0


def test_what_is_saved_knows_nothing_of_us(native, tmp_path):
    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([2])])
        def double(self, x):
            return helper(x)

    @tf.function(experimental_attributes={"_noinline": True})
    def helper(x):
        return x * 2.0

    module = Module()
    watch = native.watch(PILLS, everything)
    _, seen = call(watch, module.double, tf.ones([2]))
    assert seen.blocks
    tf.saved_model.save(module, str(tmp_path))
    assert not any(b"tensortap" in path.read_bytes() for path in tmp_path.rglob("*.pb"))


# --- the choice --------------------------------------------------------------------------------------------


def test_without_a_compiler_tensorflows_own_debug_ops_take_over(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TENSORTAP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delenv("TENSORTAP_INTERCEPTOR", raising=False)
    monkeypatch.setattr(library, "_load_or_failure", library._load_or_failure.__wrapped__)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert make_observer().name == "portable"
    assert "no-such-compiler" in caplog.text
    with pytest.raises(NativeBuildError, match="no-such-compiler"):
        make_observer("native")


def test_an_unknown_choice(monkeypatch):
    with pytest.raises(InvalidArgumentError, match=r"observer='nativ'.*native"):
        make_observer("nativ")
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", "x")
    with pytest.raises(InvalidArgumentError, match="TENSORTAP_INTERCEPTOR"):
        make_observer()
