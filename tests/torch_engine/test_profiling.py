"""Profiled runs: what PyTorch's profiler recorded, joined with our nodes. Its own table is what we are held to."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import schedule

import tensortap as tt
from tensortap.analyze.facts import module_of, phase_of
from tensortap.engines.torch.profiling.events import Allocation, Call, Calls, DeviceEvent
from tensortap.engines.torch.profiling.join import Joined, join
from tensortap.engines.torch.profiling.memory import BEFORE, lives_of, usage_of
from tensortap.engines.torch.profiling.operations import blocks_of, operations_of
from tensortap.records import Node
from tensortap.seam.step_facts import OpFacts
from tests.patience import patient
from tests.torch_engine.replay import same_bits
from tests.torch_engine.zoo import ZOO

FULL = tt.RunOptions(trace_level=tt.TraceLevel.FULL_TRACE)
MEMORY = tt.RunOptions(trace_level=tt.TraceLevel.FULL_TRACE, trace_memory=True)
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def load_workloads():
    """The training steps that the benchmarks are about."""
    path = Path(__file__).parents[2] / "benchmarks" / "workloads.py"
    spec = importlib.util.spec_from_file_location("benchmark_workloads", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


workloads = load_workloads()


def make_cnn():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.Flatten(),
        nn.Linear(16 * 36, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    batch = {"x": torch.randn(4, 3, 16, 16), "y": torch.randint(10, (4,))}
    return workloads.Workload("cnn", step, {"model": model}, {"optimizer": optimizer}, batch)


PROGRAMS = {**workloads.WORKLOADS, "cnn": make_cnn}


def session_of(program, **options):
    return tt.torch.Session(program.step, modules=program.modules, optimizers=program.optimizers, **options)


def profiled(session, batch=None, options=FULL, runs=2):
    """The metadata of the last of some profiled runs."""
    for _ in range(runs):
        metadata = tt.RunMetadata()
        session.run(None, batch, options, metadata)
    assert session.faults == 0
    return metadata


class Torch:
    """What PyTorch itself makes of the record behind a profile."""

    def __init__(self, profile):
        self.result = profile._work_out.args[0]
        theirs = torch.autograd.profiler.profile(use_kineto=True, profile_memory=True)
        theirs.kineto_results, theirs._needs_processing = self.result, True
        self.events = [each for each in theirs.function_events if each.name != "[memory]"]
        self.table = {row.key: row for row in theirs.key_averages()}
        self.self_time = sum(row.self_cpu_time_total for row in self.table.values())

    def start(self, stats):
        """When an operation began, as PyTorch counts time."""
        return round((stats.all_start_nanos - self.result.trace_start_ns()) / 1000, 3)


def operations(step_stats):
    return [stats for device in step_stats.dev_stats for stats in device.node_stats]


def op_type(stats):
    return stats.timeline_label.split(" = ")[1].split("(")[0]


@pytest.fixture(scope="module", params=PROGRAMS)
def step_of(request):
    """One step of each program, and what PyTorch says of the very same one."""
    program = PROGRAMS[request.param]()
    metadata = profiled(session_of(program, interceptor="native"), program.batch, MEMORY)
    return metadata, Torch(metadata.profile)


def test_times_and_counts_are_those_of_the_profilers_own_table(step_of):
    metadata, torch_says = step_of
    ours = operations(metadata.step_stats)
    assert metadata.profile.measured.unmatched == 0
    named = {stats.node_name for stats in ours if stats.node_name in metadata.profile.facts.ops}
    assert len(named) == sum(
        "::" in node.op_type or node.op_type == "AccumulateGrad" for node in metadata.nodes
    )

    # Their tree falls into our operations with all that is inside, and the callers of those.
    starts = {torch_says.start(stats) for stats in ours}
    types = set(map(op_type, ours))
    taken, inside, outside = set(), set(), []
    for event in torch_says.events:
        if event.cpu_parent is not None and event.cpu_parent.id in inside:
            inside.add(event.id)
        elif starts_one_of_ours(event, starts, types) and round(event.time_range.start, 3) not in taken:
            taken.add(round(event.time_range.start, 3))
            inside.add(event.id)
        else:
            outside.append(event)
    assert len(taken) == len(ours), "every operation of ours is one of theirs"
    total = sum(stats.all_end_rel_nanos for stats in ours) / 1000
    callers = sum(event.self_cpu_time_total for event in outside)
    assert total + callers == pytest.approx(torch_says.self_time, rel=1e-3), "and no time is left over"
    assert total > 0.5 * torch_says.self_time

    # Where an op never occurs inside another one, its row of the table is ours too.
    counts = Counter(map(op_type, ours))
    nested = {e.name for e in torch_says.events if e.cpu_parent is not None and e.cpu_parent.id in inside}
    compared = [op for op in counts if op in torch_says.table and op not in nested]
    assert len(compared) >= 5
    for op in compared:
        row = torch_says.table[op]
        assert counts[op] == row.count, op
        spent = sum(stats.all_end_rel_nanos for stats in ours if op_type(stats) == op) / 1000
        assert spent == pytest.approx(row.cpu_time_total, rel=1e-3, abs=row.count * 0.002), op


def starts_one_of_ours(event, starts, types):
    """Whether an event is an operation of ours, and not the caller of one that began in the same nanosecond."""
    if round(event.time_range.start, 3) not in starts:
        return False
    first = event.cpu_children[0].time_range.start if event.cpu_children else None
    return first != event.time_range.start or event.name in types


def test_memory_is_what_the_allocator_counted(step_of):
    metadata, torch_says = step_of
    totals = list(allocator_totals(torch_says.result.experimental_event_tree()))
    totals.sort()
    _, first_size, first_total = totals[0]
    their_peak = max(total for _, _, total in totals) - (first_total - first_size)

    ours = operations(metadata.step_stats)
    records = [each for stats in ours for memory in stats.memory for each in memory.allocation_records]
    records.sort(key=lambda each: each.alloc_micros)
    total = peak = 0
    for record in records:
        total += record.alloc_bytes
        peak = max(peak, total)
    assert len(records) == len(totals)
    # Within a microsecond the order of the message is not known, so small changes may swap.
    assert peak == pytest.approx(their_peak, rel=0.001)
    rows = torch_says.table.values()
    assert total == sum(row.self_cpu_memory_usage for row in rows)

    lives = metadata.profile.facts.lives
    moments = sorted(
        [(life.start_nanos, life.nbytes) for life in lives]
        + [(life.end_nanos, -life.nbytes) for life in lives if life.end_nanos is not None]
    )
    alive = most = 0
    for _, change in moments:
        alive += change
        most = max(most, alive)
    before = sum(life.nbytes for life in lives if life.start_nanos < totals[0][0])
    assert most - before == their_peak
    names = {node.tensor(slot) for node in metadata.nodes for slot in range(len(node.outputs))}
    kept = [life for life in lives if not life.tensor.endswith(":temporary") and life.tensor != BEFORE]
    assert {life.tensor for life in kept} <= names
    assert len(kept) > len(lives) / 4


def allocator_totals(events):
    for event in events:
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.total_allocated
        yield from allocator_totals(event.children)


@pytest.mark.parametrize(
    "name", ["mlp", "cnn"]
)  # with the lstm, autograd adds gradients in place for one only
def test_both_interceptors_tell_the_same(name):
    found = {}
    for interceptor in ("native", "dispatch"):
        program = PROGRAMS[name]()
        metadata = profiled(session_of(program, interceptor=interceptor), program.batch)
        assert metadata.profile.measured.unmatched == 0
        labels = [stats.timeline_label for stats in operations(metadata.step_stats)]
        found[interceptor] = {
            label for label in labels if label.split(" = ")[0] in metadata.profile.facts.ops
        }
    assert found["native"] == found["dispatch"]


def test_a_message_is_filled_as_tensorflow_fills_it(interceptor):
    model = nn.Linear(3, 2)
    session = tt.torch.Session(lambda x: {"y": model(x).relu()}, modules={"model": model})
    metadata = profiled(session, {"x": torch.ones(4, 3)}, MEMORY)
    (device,) = metadata.step_stats.dev_stats
    assert device.device == CPU
    stats = {each.node_name: each for each in device.node_stats}
    addmm = stats["model/addmm"]
    assert addmm.timeline_label == "model/addmm = aten::addmm(model/bias, x, model/t)"
    assert addmm.all_start_micros == addmm.all_start_nanos // 1000
    assert 0 < addmm.op_end_rel_nanos == addmm.all_end_rel_nanos
    assert addmm.op_end_rel_micros == addmm.all_end_rel_micros
    assert device.thread_names[addmm.thread_id] == threading.current_thread().name
    (output,) = addmm.output
    described = output.tensor_description
    assert (described.dtype, [dim.size for dim in described.shape.dim]) == (1, [4, 2])
    assert described.allocation_description.requested_bytes == 4 * 2 * 4
    assert described.allocation_description.allocator_name == "cpu"
    (memory,) = addmm.memory
    assert memory.total_bytes == memory.peak_bytes == memory.live_bytes == 32
    view = stats["model/t"].output[0].tensor_description.allocation_description
    assert view.requested_bytes == 0, "a view takes no memory of its own"


def test_facts_tell_module_phase_line_and_inputs(interceptor):
    program = make_cnn()
    ops = profiled(session_of(program), program.batch).profile.facts.ops
    convolution = ops["model/0/convolution"]
    assert (convolution.module, convolution.phase) == ("model/0", "forward")
    assert convolution.source_file == __file__
    assert convolution.inputs[0] == "x:0"
    backward = ops["gradients/model/4/convolution/convolution_backward"]
    assert (backward.module, backward.phase) == ("model/4", "backward")
    assert backward.source_line == ops["model/4/convolution"].source_line
    if interceptor == "native":
        assert backward.sequence == -1 or backward.sequence >= ops["model/4/convolution"].sequence
    assert {"forward", "backward", "optimizer"} == {each.phase for each in ops.values()}


def test_a_gradient_that_is_added_to_is_complete_after_the_addition():
    model = nn.Linear(3, 2)

    def step(x):
        model(x).sum().backward()

    metadata = profiled(tt.torch.Session(step, modules={"model": model}), {"x": torch.ones(4, 3)}, runs=3)
    stats = {each.node_name: each for each in operations(metadata.step_stats)}
    added, complete = stats["gradients/model/bias/add_"], stats["gradients/model/bias"]
    assert complete.timeline_label.startswith(
        "gradients/model/bias = AccumulateGrad(gradients/model/bias/add_"
    )
    assert complete.all_start_nanos >= added.all_start_nanos + added.all_end_rel_nanos


def test_weights_are_the_same_bits_after_profiled_runs(interceptor):
    plain, other = make_cnn(), make_cnn()
    session = session_of(other)
    for _ in range(3):
        plain.step(**plain.batch)
        session.run(None, other.batch, MEMORY, tt.RunMetadata())
    theirs = other.modules["model"].state_dict()
    for name, mine in plain.modules["model"].state_dict().items():
        assert same_bits(mine, theirs[name]), name


CASES = [
    *(("native", name) for name in ZOO),
    *(
        ("dispatch", name)
        for name in ("autocast_bf16", "vmap_grad", "double_backward", "checkpoint_reentrant")
    ),
]


@pytest.mark.parametrize(("interceptor", "name"), CASES)
def test_every_node_of_every_program_is_found(interceptor, name):
    expected = ZOO[name]().run(2)
    case = ZOO[name]()
    session = session_of(case, interceptor=interceptor)
    for run in range(2):
        metadata = tt.RunMetadata()
        result = session.run(None, case.batch(run), MEMORY, metadata)
        assert same_bits(result["loss"].detach(), expected[run])
    assert session.faults == 0
    assert metadata.profile.measured.unmatched == 0
    found = {stats.node_name for stats in operations(metadata.step_stats)}
    assert {node.name for node in metadata.nodes if "::" in node.op_type} <= found


def test_a_run_that_nobody_asked_to_measure_is_not_measured():
    session = tt.torch.Session(lambda x: {"y": x + 1})
    metadata = tt.RunMetadata()
    session.run(None, {"x": torch.ones(2)}, tt.RunOptions(output_partition_graphs=True), metadata)
    assert metadata.profile is None
    assert metadata.step_stats is None


def test_feeds_captures_and_taps_go_with_a_trace():
    model = nn.Linear(3, 2)
    session = tt.torch.Session(lambda x: {"y": model(x).relu()}, modules={"model": model})
    seen = []
    options = tt.RunOptions(
        trace_level=tt.TraceLevel.FULL_TRACE, taps=[lambda node, slot, tensor: seen.append(node.name)]
    )
    metadata = tt.RunMetadata()
    fetched = session.run(
        "model/addmm:0", {"x": torch.ones(4, 3), "model/addmm:0": torch.zeros(4, 2)}, options, metadata
    )
    assert not fetched.any()
    assert "relu" in seen
    assert {"model/addmm", "relu"} <= {stats.node_name for stats in operations(metadata.step_stats)}


def test_a_failing_step_leaves_no_profiler_behind():
    session = tt.torch.Session(lambda x: {"y": x @ torch.ones(7)})
    with pytest.raises(tt.errors.OpError):
        session.run(None, {"x": torch.ones(2)}, FULL, tt.RunMetadata())
    assert not torch._C._autograd._profiler_enabled()
    metadata = profiled(tt.torch.Session(lambda x: {"y": x + 1}), {"x": torch.ones(2)})
    assert [stats.node_name for stats in operations(metadata.step_stats)] == ["add"]


# --- programs that profile themselves ---------------------------------------------------------------


def test_a_profiler_of_the_program_goes_first(caplog):
    session = tt.torch.Session(lambda x: {"y": x + 1})
    metadata = tt.RunMetadata()
    with torch.profiler.profile() as theirs:
        for _ in range(2):
            session.run(None, {"x": torch.ones(2)}, FULL, metadata)
    assert metadata.profile is None
    assert sum(event.name == "aten::add" for event in theirs.events()) == 2
    said = [record.message for record in caplog.records if "own torch.profiler" in record.message]
    assert len(said) == 1
    session.run(None, {"x": torch.ones(2)}, FULL, metadata)
    assert metadata.profile is not None, "theirs has ended"


def test_a_profiler_that_the_step_starts_goes_before_ours(caplog):
    counts = []

    def step(x):
        with torch.profiler.profile() as theirs:
            y = x + 1
        counts.append(sum(event.name == "aten::add" for event in theirs.events()))
        return {"y": y}

    session = tt.torch.Session(step)
    metadata = tt.RunMetadata()
    session.run(None, {"x": torch.ones(2)}, FULL, metadata)
    assert counts == [1]
    assert metadata.profile is None
    assert "started its own torch.profiler during a profiled step" in caplog.text


def test_a_profiler_that_warms_up_is_not_disturbed_and_the_terminal_stays_clean():
    """In a process of its own: PyTorch crashes if a second profiler runs while the first one warms up."""
    program = """
    import logging, torch, tensortap as tt
    from torch.profiler import profile, schedule
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    counts, profiled = [], []
    session = tt.torch.Session(lambda x: {"y": x + 1})
    options = tt.RunOptions(trace_level=tt.TraceLevel.FULL_TRACE)

    def run():
        metadata = tt.RunMetadata()
        session.run(None, {"x": torch.ones(2)}, options, metadata)
        profiled.append(metadata.profile is not None)

    run()
    ready = lambda prof: counts.append(sum(event.name == "aten::add" for event in prof.events()))
    with profile(schedule=schedule(wait=1, warmup=2, active=2, repeat=1), on_trace_ready=ready) as theirs:
        for _ in range(8):
            run()
            theirs.step()
    print(counts, profiled)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=patient(120)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"[2] {[True, True, False, False, False, False, True, True, True]}"
    assert done.stderr.strip() == (
        "The program runs its own torch.profiler, and PyTorch allows only one: steps are not profiled while it is "
        "active."
    )


def test_two_threads_that_profile_take_turns():
    barrier = threading.Barrier(2)

    def step(x):
        barrier.wait(patient(30))
        y = x + 1
        barrier.wait(patient(30))
        return {"y": y}

    profiles = []

    def work():
        metadata = tt.RunMetadata()
        tt.torch.Session(step).run(None, {"x": torch.ones(2)}, FULL, metadata)
        profiles.append(metadata.profile)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(60))
    assert len(profiles) == 2
    assert sum(profile is not None for profile in profiles) == 1


def test_compiled_code_is_measured_as_it_is():
    model = torch.compile(nn.Linear(3, 2), backend="eager")
    session = tt.torch.Session(lambda x: {"y": model(x).relu()})
    session.run(None, {"x": torch.ones(2, 3)})
    metadata = profiled(session, {"x": torch.ones(2, 3)}, runs=1)
    assert ran_compiled(metadata)
    assert metadata.nodes == [], "nobody looked into it"
    assert metadata.profile.measured.unmatched == 0
    assert [stats.node_name for stats in operations(metadata.step_stats)][-1] == "aten::relu"


def test_a_compiled_function_is_found_out_by_the_first_trace(caplog):
    activate = torch.compile(torch.relu, backend="eager")
    session = tt.torch.Session(lambda x: {"y": activate(x * 2)})
    first = profiled(session, {"x": torch.ones(2, 3)}, runs=1)
    assert first.profile is None, "observed, it ran eagerly: that is no profile of it"
    assert "compiled by torch.compile" in caplog.text
    session.run(None, {"x": torch.ones(2, 3)})
    assert ran_compiled(profiled(session, {"x": torch.ones(2, 3)}, runs=1))


def ran_compiled(metadata):
    """To be asked before the profile is worked out."""
    return any("Compiled" in event.name() for event in metadata.profile._work_out.args[0].events())


# --- joining, on records made by hand -----------------------------------------------------------------


def thread_of(*calls):
    return Calls(
        1,
        [
            Call(name, start, end, number + 1, -1, scope)
            for number, (name, start, end, scope) in enumerate(calls)
        ],
    )


def execution(*rows):
    return np.array(rows, "<i8").tobytes()


def test_a_call_whose_name_disagrees_is_not_joined():
    thread = thread_of(("aten::mm", 0, 5, 0), ("aten::add", 6, 8, 0))
    nodes = [Node("mm", "aten::mm"), Node("mul", "aten::mul"), Node("late", "aten::add")]
    found = join([thread], nodes, execution([0, 1, 0, 0, 64], [1, 1, 1, 0, 128], [2, 1, 9, 0, 0]))
    assert found.nodes == {(0, 0): 0}
    assert found.unmatched == 2
    assert [each.name for each in operations_of([thread], nodes, found)] == ["mm", "aten::add"]


def test_a_dispatch_mode_is_recognised_with_and_without_a_name():
    """Earlier versions of PyTorch do not record the mode itself."""
    nodes = [Node("x", "Placeholder"), Node("mm", "aten::mm"), Node("add", "aten::add")]
    told = thread_of(
        ("aten::mm", 0, 9, 0),
        ("PythonDispatchMode", 1, 8, 0),
        ("aten::as_strided", 2, 3, 0),
        ("aten::mm", 4, 7, 0),
        ("aten::add", 10, 19, 0),
        ("PythonDispatchMode", 11, 18, 0),
        ("aten::add", 14, 17, 0),
    )
    assert join([told], nodes, b"").nodes == {(0, 3): 1, (0, 6): 2}
    untold = thread_of(
        ("aten::mm", 0, 9, 0),
        ("aten::mm", 4, 7, 0),
        ("aten::add", 10, 12, 0),  # hidden from the mode, so it is not repeated
        ("aten::add", 13, 19, 0),
        ("aten::add", 14, 17, 0),
    )
    assert join([untold], nodes, b"").nodes == {(0, 1): 1, (0, 4): 2}


def test_what_only_calls_others_is_no_operation():
    thread = thread_of(
        ("ProfilerStep", 0, 100, 7),
        ("aten::linear", 1, 50, 0),
        ("aten::t", 2, 5, 0),
        ("aten::addmm", 6, 49, 0),
        ("aten::copy_", 7, 20, 0),
        ("my block", 60, 90, 7),
    )
    found = operations_of([thread], [Node("fc/addmm", "aten::addmm")], Joined({(0, 3): 0}))
    assert [(each.name, each.start, each.end) for each in found] == [
        ("aten::t", 2, 5),
        ("fc/addmm", 6, 49),
        ("my block", 60, 90),
    ]
    assert [each.name for each in blocks_of([thread], found)] == ["ProfilerStep"]


def test_kernels_name_the_node_that_launched_them():
    from tensortap.engines.torch.profiling.stats import _launchers, _Writer

    thread = thread_of(("aten::addmm", 0, 9, 0), ("aten::copy_", 1, 2, 0))
    nodes = [Node("fc/addmm", "aten::addmm", device=CPU.replace("CPU", "CUDA"))]
    ran = operations_of([thread], nodes, Joined({(0, 0): 0}))
    writer = _Writer(nodes, {}, {})
    writer.add(0, ran[0], CPU)
    event = DeviceEvent("sgemm_128", CPU.replace("CPU", "CUDA"), 7, 20, 45, launched_by=2)
    writer.add_device_event(event, _launchers([thread], ran).get(event.launched_by))
    names = [device.device.removeprefix(CPU[:-5]) for device in writer.message().dev_stats]
    assert names == ["CUDA:0", "CUDA:0/stream:7", "CUDA:0/stream:all"]
    kernel = writer.message().dev_stats[1].node_stats[0]
    assert kernel.timeline_label == "sgemm_128 @@fc/addmm:aten::addmm#"
    assert (kernel.all_start_nanos, kernel.all_end_rel_nanos) == (20, 25)


def test_memory_of_every_kind_is_accounted_for():
    thread = thread_of(("aten::mm", 10, 20, 0), ("aten::relu", 30, 40, 0))
    nodes = [Node("mm", "aten::mm"), Node("relu", "aten::relu")]
    ran = operations_of([thread], nodes, Joined({(0, 0): 0, (0, 1): 1}))
    changes = [
        Allocation(5, 1, CPU, 900, -8, 0),  # from before, given back before the first op
        Allocation(11, 1, CPU, 100, 64, 64),  # becomes mm:0
        Allocation(12, 1, CPU, 200, 32, 96),
        Allocation(13, 1, CPU, 200, -32, 64),
        Allocation(25, 1, CPU, 100, -64, 0),  # between two ops
        Allocation(31, 1, CPU, 100, 16, 16),  # the same address again: relu:0, which stays
    ]
    lives = lives_of(changes, ran, {100: [(20, "mm:0"), (40, "relu:0")]}, 0)
    assert [(life.tensor, life.nbytes, life.start_nanos, life.end_nanos) for life in lives] == [
        (BEFORE, 8, 0, 5),
        ("mm:0", 64, 11, 25),
        ("mm:temporary", 32, 12, 13),
        ("relu:0", 16, 31, None),
    ]
    used = usage_of(changes, ran)
    assert (used[0, CPU].taken, used[0, CPU].live, used[1, CPU].live) == (96, -8, 16)


def test_facts_of_a_node_need_no_profiler():
    assert OpFacts.of(Node("optimizer/AdamW/fc/weight/mul_", "aten::mul_")).phase == "optimizer"


@pytest.mark.parametrize(
    ("node", "module"),
    [
        (Node("model/fc/addmm", "aten::addmm"), "model/fc"),
        (Node("recompute/model/fc/addmm", "aten::addmm"), "model/fc"),
        (Node("gradients/model/fc/addmm/mm", "aten::mm", forward="recompute/model/fc/addmm"), "model/fc"),
        (Node("gradients/model/fc/weight", "AccumulateGrad"), "model/fc"),
        (Node("optimizer/AdamW/model/fc/weight/mul_", "aten::mul_"), "model/fc"),
        (Node("optimizer/AdamW/foreach_mul_", "aten::_foreach_mul_"), None),
        (Node("model/fc/mul/const", "Const"), "model/fc"),
        (Node("sum", "aten::sum"), None),
    ],
    ids=lambda given: given.name if isinstance(given, Node) else None,
)
def test_timelines_and_the_analysis_agree_on_modules(node, module):
    assert module_of(node) == module
    assert OpFacts.of(node).module == (module or "")
    assert OpFacts.of(node).phase == (phase_of(node) if node.op_type != "Const" else "forward")


def test_a_schedule_that_waits_is_no_reason_not_to_profile():
    session = tt.torch.Session(lambda x: {"y": x + 1})
    with torch.profiler.profile(schedule=schedule(wait=5, warmup=1, active=1)):
        assert profiled(session, {"x": torch.ones(2)}).profile is not None


@pytest.mark.parametrize("traced", ["outer", "inner"])
def test_a_run_inside_a_run(traced):
    watch = tt.RunOptions(output_partition_graphs=True)
    inner = tt.torch.Session(lambda x: {"z": x.sin().cos()}, interceptor="native")
    inside, outside = tt.RunMetadata(), tt.RunMetadata()

    def step(x):
        y = x * 2
        inner.run(None, {"x": y}, FULL if traced == "inner" else watch, inside)
        return {"y": (y + 1).exp()}

    outer = tt.torch.Session(step, interceptor="native")
    for _ in range(2):
        outer.run(None, {"x": torch.ones(3)}, FULL if traced == "outer" else watch, outside)
    profile = (outside if traced == "outer" else inside).profile
    assert profile.measured.unmatched == 0
    names = ["mul", "add", "exp"] if traced == "outer" else ["sin", "cos"]
    ran = [stats.node_name for stats in operations(profile.step_stats)]
    assert [name for name in ran if name in profile.facts.ops] == names
