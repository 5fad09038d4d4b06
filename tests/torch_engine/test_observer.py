"""The native interceptor: what it must not disturb, and what it must survive."""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import tensortap as tt
from tensortap import pill
from tensortap.errors import InvalidArgumentError
from tensortap.reader.dump_dir import DebugDumpDir
from tensortap.reader.session_dir import SessionDir
from tests.patience import patient
from tests.torch_engine.replay import same_bits
from tests.torch_engine.zoo import ZOO

SLOW = bool(os.environ.get("TENSORTAP_SLOW_TESTS"))
WATCH = tt.RunOptions(taps=[lambda node, slot, tensor: None])


@pytest.fixture(autouse=True)
def native(monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", "native")


def health(fetches, feeds):
    """The health of every tensor."""
    return tt.WatchOptions(["DebugNumericSummary"])


def session_of(case, **options):
    return tt.torch.Session(case.step, modules=case.modules, optimizers=case.optimizers, **options)


def dumping(session, root, watch=health):
    return tt.DumpingDebugWrapperSession(session, root, watch_fn=watch)


def names_of(session, feeds=None):
    metadata = tt.RunMetadata()
    session.run(None, feeds, tt.RunOptions(output_partition_graphs=True), metadata)
    assert session.faults == 0
    return [node.name for node in metadata.nodes]


def names_in(graph):
    return {node.name for node in graph.nodes}


def python(program, *arguments, **options):
    """Run a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=patient(200),
        **options,
    )


# Training goes on as if nobody looked


@pytest.mark.parametrize("name", ["transformer_explicit", "cnn_batchnorm", "nn_lstm"])
def test_fifty_steps_are_bit_identical_with_everything_watched(name, tmp_path):
    plain = ZOO[name]()
    torch.manual_seed(7)
    expected = plain.run(50)
    generator = torch.get_rng_state()

    case = ZOO[name]()
    torch.manual_seed(7)
    inner = session_of(case)
    with dumping(inner, tmp_path / "dump") as session:
        losses = [session.run(None, case.batch(run))["loss"].detach().clone() for run in range(50)]
    assert inner.faults == 0
    assert all(map(same_bits, losses, expected))
    assert same_bits(torch.get_rng_state(), generator)
    state = plain.state()
    for key, value in case.state().items():
        assert same_bits(value, state[key]), key
    history = SessionDir(tmp_path / "dump").history("gradients/" + next(iter(state)).replace(".", "/") + ":0")
    assert len(history) == 50


def ops_of(call):
    """The ops that PyTorch's profiler sees in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return Counter(event.name for event in profile.events() if event.name.startswith("aten::"))


@pytest.mark.parametrize(
    "name", ["transformer_sdpa", "cnn_batchnorm", "lstm_cell_loop", "gradient_accumulation"]
)
def test_a_watched_step_executes_the_same_ops(name, tmp_path):
    """Gradients are not copied, because nothing holds them when autograd wants to have them for itself."""
    plain = ZOO[name]()
    plain.run(3)
    expected = ops_of(lambda: plain.step(**plain.batch(3)))

    case = ZOO[name]()
    with dumping(session_of(case), tmp_path / "dump") as session:
        for run in range(3):
            session.run(None, case.batch(run))
        assert ops_of(lambda: session.run(None, case.batch(3))) == expected


@pytest.mark.parametrize("runs", [1, 4], ids=["first run", "later run"])
def test_parameters_take_their_gradient_without_a_copy(runs, tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    arrived, kept = {}, {}
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: arrived.update({name: gradient.data_ptr()}))

    def step(x):
        model.zero_grad()
        model(x).square().mean().backward()
        kept.update({name: parameter.grad.data_ptr() for name, parameter in model.named_parameters()})

    step(torch.ones(2, 6))
    taken = {name for name in kept if kept[name] == arrived[name]}
    assert taken
    with dumping(tt.torch.Session(step), tmp_path / "dump") as session:
        for _ in range(runs):
            session.run(None, {"x": torch.ones(2, 6)})
    assert {name for name in kept if kept[name] == arrived[name]} == taken


@pytest.mark.parametrize("place", ["inside the step", "around the step"])
def test_the_programs_own_profiler_sees_everything(place, tmp_path):
    case = ZOO["cnn_batchnorm"]()
    seen = []

    def profiled(**batch):
        seen.append(ops_of(lambda: case.step(**batch)))

    def step(images, y):
        if place == "inside the step":
            profiled(images=images, y=y)
        else:
            case.step(images, y)

    batches = [case.batch(run) for run in range(5)]
    expected = ops_of(lambda: case.step(**batches[4]))
    assert expected["aten::mkldnn_convolution"] or expected["aten::thnn_conv2d"]  # ops that other ops call
    session = tt.torch.Session(step, modules=case.modules, optimizers=case.optimizers)
    with dumping(session, tmp_path / "dump") as watched:
        for batch in batches[:4]:
            if place == "inside the step":
                watched.run(None, batch)
            else:
                seen.append(ops_of(lambda batch=batch: watched.run(None, batch)))
    assert seen[-1] == expected
    assert session.faults == 0


def test_a_profiler_that_starts_and_stops_in_the_middle_of_a_step():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    seen = []

    def step(x):
        y = model(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            with torch.profiler.record_function("mine"):
                y = model(y)
        seen.append(Counter(event.name for event in profile.events()))
        return {"y": model(y)}

    step(torch.ones(1, 4))
    session = tt.torch.Session(step)
    names = [names_of(session, {"x": torch.ones(1, 4)}) for _ in range(4)]
    assert all(each == seen[0] for each in seen[1:])
    assert seen[0]["mine"] == 1
    assert names[0].count("model/0/addmm_2") == 1
    assert names[1] == names[2] == names[3]


def test_a_profiler_of_all_threads_that_starts_in_the_middle_of_a_step():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    seen = []

    def step(x, profiled):
        model.zero_grad()
        if not profiled:
            model(x).sum().backward()
            return
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
        ) as profile:
            model(x).sum().backward()
        seen.append(Counter(event.name for event in profile.events()))

    x = torch.ones(2, 4)
    step(x, True)
    session = tt.torch.Session(step)
    for run in range(4):
        session.run(None, {"x": x, "profiled": run == 3}, WATCH)
    assert seen[1] == seen[0]


# Nothing is kept

GROWTH = """
    import resource, shutil, sys, torch, tensortap as tt
    from torch import nn
    kind, warm, steps, root = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    def step(x):
        model(x).square().mean().backward()
        optimizer.step(); optimizer.zero_grad()
    inner = tt.torch.Session(step)
    if kind == "tapped":
        session, options = inner, tt.RunOptions(taps=[lambda n, s, t: None])
    else:
        watch = lambda fetches, feeds: tt.WatchOptions(["DebugNumericSummary"])
        session = tt.DumpingDebugWrapperSession(inner, root, watch_fn=watch, retention=tt.Retention(last=3))
        options = None
    count = 0
    def run(times):
        global count
        for _ in range(times):
            count += 1
            rows = 2 + count % 97 if kind == "changing" else 2
            session.run(None, {"x": torch.ones(rows, 8)}, options)
        if options is None:
            session.flush()  # records that wait for a slow disk are not kept
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    sizes = [run(warm), *(run(steps) for _ in range(5))]
    print(min(after - before for before, after in zip(sizes, sizes[1:])) / steps)
    assert inner.faults == 0
    session.close()
"""


@pytest.mark.parametrize("kind", ["watched", "changing"])
def test_memory_does_not_grow_over_watched_steps(kind, tmp_path):
    """What leaks grows all the time; pools and caches grow now and then until they have what they need."""
    warm, steps = (1000, 1000) if SLOW else (100, 60)
    done = python(GROWTH, kind, warm, steps, tmp_path / "dump")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < (400 if SLOW else 4096), "bytes a step"


def test_no_tensor_of_the_step_outlives_it(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    alive = []

    def step(x):
        hidden = model(x)
        view = hidden[:, 1:]
        loss = view.square().mean()
        loss.backward()
        alive.extend(map(weakref.ref, (hidden, view, loss, model[0].weight.grad)))
        model.zero_grad()

    with dumping(
        tt.torch.Session(step), tmp_path / "dump", lambda fetches, feeds: tt.WatchOptions()
    ) as session:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                session.run(None, {"x": torch.ones(2, 4)})
                assert [each() for each in alive] == [None] * len(alive)
                alive.clear()
        finally:
            gc.enable()


def test_memory_that_the_step_frees_is_free_while_the_step_goes_on():
    alive = []

    def step(x):
        big = x * 2
        alive.append(weakref.ref(big.untyped_storage()))
        del big
        alive.append(alive.pop()() is None)
        return {"y": x + 1}

    session = tt.torch.Session(step)
    for _ in range(3):
        session.run(None, {"x": torch.ones(100)}, WATCH)
    assert alive == [True] * 3


# Threads and processes


def test_memory_whose_address_comes_back_is_another_tensor():
    """Memory that is gone is let go during a run, and the next tensor, made where nobody sees it, takes its place."""

    def step():
        total, kept = torch.zeros(8), []
        for i in range(300):
            made = torch.tensor([float(i)] * 8)
            total = total + made[2:6].sum() * made
            made[2:6] += 1
            if i % 50 == 0:
                kept.append(made[2:6])
        return {"total": total + torch.stack(kept).sum()}

    def edges(interceptor):
        with tt.torch.Session(step, interceptor=interceptor) as session:
            names_of(session)
            metadata = tt.RunMetadata()
            session.run(None, None, tt.RunOptions(output_partition_graphs=True), metadata)
            assert session.faults == 0
        return [(node.name, node.inputs, node.control_inputs) for node in metadata.nodes]

    seen = edges("native")
    assert len([name for name, _, _ in seen if "/const" in name]) >= 300
    assert seen == edges("dispatch")


def test_runs_of_very_different_lengths_lose_no_record(tmp_path):
    """Blocks of records are as large as the last run filled them."""

    def step(count):
        value = torch.ones(3)
        for _ in range(int(count)):
            value = value + 1
        return {"value": value}

    session = tt.torch.Session(step, interceptor="native")
    lengths = [2, 6000, 3, 500, 1, 9000, 40]
    with dumping(session, tmp_path / "dump") as running:
        for length in lengths:
            running.run(None, {"count": length})
    assert session.faults == 0
    for run, length in zip(SessionDir(tmp_path / "dump").runs, lengths, strict=True):
        data = [each for each in run.open().dumped_tensor_data if each.node_name.startswith("add")]
        means = {each.node_name: each.get_tensor()[pill.MEAN] for each in data}
        names = ["add", *(f"add_{number}" for number in range(1, length))]
        assert [means[name] for name in names] == [2.0 + number for number in range(length)]


def test_what_another_thread_does_is_neither_harmed_nor_recorded():
    stop, wrong, rounds = threading.Event(), [], []
    other_model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1))
    x = torch.ones(3, 5)

    def gradient_of_other():
        other_model.zero_grad()
        other_model(x).exp().sum().backward()
        return other_model[0].weight.grad.clone()

    expected = gradient_of_other()

    def work():
        while not stop.is_set():
            if not torch.equal(gradient_of_other(), expected):
                wrong.append(1)
            rounds.append(1)

    case = ZOO["adamw_forloop"]()
    session = session_of(case)
    alone = [names_of(session, case.batch(run)) for run in range(2)][1]
    thread = threading.Thread(target=work)
    thread.start()
    try:
        while len(rounds) < 20:
            assert names_of(session, case.batch(2)) == alone
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert not any("exp" in name.split("/") for name in names_in(session.graph))


def test_two_threads_with_a_session_each(tmp_path):
    barrier = threading.Barrier(2)
    failures = []

    def train(name, model, root):
        try:

            def step(x):
                model.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return {"loss": loss}

            inner = tt.torch.Session(step, modules={name: model})
            with dumping(inner, root) as session:
                barrier.wait(patient(20))
                for _ in range(20):
                    session.run(None, {"x": torch.ones(2, 4)})
            assert inner.faults == 0
        except BaseException as error:
            failures.append(error)

    models = {
        "wide": nn.Sequential(nn.Linear(4, 9), nn.Tanh()),
        "deep": nn.Sequential(*[nn.Linear(4, 4)] * 5),
    }
    threads = [
        threading.Thread(target=train, args=(name, model, tmp_path / name)) for name, model in models.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(60))
    assert not failures
    for name, other in (("wide", "deep"), ("deep", "wide")):
        dumps = SessionDir(tmp_path / name)
        assert len(dumps) == 20
        tensors = dumps.tensors()
        assert f"{name}/0/addmm:0" in tensors
        assert not [each for each in tensors if other in each]
        sizes = {run.open().size for run in dumps}
        assert len(sizes) == 1


def test_one_session_run_by_two_threads():
    model = nn.Linear(4, 2)
    session = tt.torch.Session(lambda x: {"y": model(x).tanh()}, modules={"model": model})
    alone = names_of(session, {"x": torch.ones(1, 4)})
    seen, failures = [], []

    def work():
        try:
            seen.extend(names_of(session, {"x": torch.ones(1, 4)}) for _ in range(30))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(60))
    assert not failures
    assert seen == [alone] * 60


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return (torch.ones(3) * index).cos()


def test_a_data_loader_that_forks_its_workers_inside_the_step(tmp_path):
    def step():
        loader = torch.utils.data.DataLoader(
            Numbers(), batch_size=2, num_workers=1, multiprocessing_context="fork"
        )
        return {"total": sum(batch.sum() for batch in loader)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about forking with threads
        inner = tt.torch.Session(step)
        with dumping(inner, tmp_path / "dump") as session:
            totals = [float(session.run("total")) for _ in range(2)]
    assert totals == [pytest.approx(float(sum(Numbers()[i].sum() for i in range(6))))] * 2
    assert inner.faults == 0
    for run in SessionDir(tmp_path / "dump"):
        assert not [each for each in run.open().dumped_tensor_data if "cos" in each.node_name]


FORK = """
    import os, sys, warnings, torch, tensortap as tt
    from torch import nn
    warnings.simplefilter("ignore", DeprecationWarning)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    def work(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss
    def step(x):
        loss = work(x)
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            (work(x) * 3).cos()
            if sys.argv[2] == "abrupt":
                os._exit(0)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        return {"loss": loss, "status": os.waitstatus_to_exitcode(status), "y": work(x).sin()}
    watch = lambda fetches, feeds: tt.WatchOptions(["DebugNumericSummary"])
    inner = tt.torch.Session(step, modules={"model": model})
    with tt.DumpingDebugWrapperSession(inner, sys.argv[1], watch_fn=watch) as session:
        for _ in range(2):
            print(session.run("status", {"x": torch.ones(2, 4)}), inner.faults)
"""


@pytest.mark.parametrize("end", ["abrupt", "orderly"])
def test_a_fork_in_the_middle_of_a_step(end, tmp_path):
    done = python(FORK, tmp_path / "dump", end)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 0"] * 2, done.stderr
    assert done.stderr == ""
    dumps = SessionDir(tmp_path / "dump")
    assert len(dumps) == 2
    assert dumps.notices == []
    for run in dumps:
        names = Counter(each.node_name for each in run.open().dumped_tensor_data)
        assert names["sin"] == names["model/0/addmm"] == names["model/0/addmm_1"] == 1
        assert "cos" not in names


EXIT = """
    import sys, threading, time, torch, tensortap as tt
    from torch import nn
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    how = sys.argv[2]
    begun = threading.Event()
    def step(x):
        model(x).square().mean().backward()
        if how == "inside a run":
            sys.exit(0)
        if how == "while another thread is in a run":
            begun.set()
            time.sleep(60)
    watch = lambda fetches, feeds: tt.WatchOptions(["DebugNumericSummary"])
    session = tt.DumpingDebugWrapperSession(tt.torch.Session(step), sys.argv[1], watch_fn=watch)
    run = lambda: session.run(None, {"x": torch.ones(2, 4)})
    if how == "while another thread is in a run":
        threading.Thread(target=run, daemon=True).start()
        begun.wait(30)
        time.sleep(0.5)
    else:
        for _ in range(3):
            run()
    print("done")
"""


@pytest.mark.parametrize("how", ["session open", "inside a run", "while another thread is in a run"])
def test_the_interpreter_ends(how, tmp_path):
    done = python(EXIT, tmp_path / "dump", how)
    assert (done.returncode, done.stderr) == (0, "")
    dumps = SessionDir(tmp_path / "dump")
    assert len(dumps) == (3 if how == "session open" else 1)
    assert "model/0/addmm:0" in dumps.tensors()


HANG = """
    import sys, torch, tensortap as tt
    @torch.library.custom_op("tests_native::wait", mutates_args=())
    def wait(x: torch.Tensor) -> torch.Tensor:
        sys.stdin.readline()
        return x.clone()
    torch.set_num_threads(1)
    big = torch.ones(5000, 5000, dtype=torch.float64)
    def step(x):
        y = (x * 2).cos()
        print("hanging", flush=True)
        z = wait(y) if sys.argv[2] == "asleep" else [big.mm(big) for _ in range(10)]
        print("returned", flush=True)
    watch = lambda fetches, feeds: tt.WatchOptions(["DebugNumericSummary"], node_name_regex_allowlist="mul|cos")
    session = tt.DumpingDebugWrapperSession(tt.torch.Session(step), sys.argv[1], watch_fn=watch)
    session.run(None, {"x": torch.ones(2)})
"""


@pytest.mark.parametrize("how", ["asleep", "computing"])
def test_what_a_hanging_run_has_recorded_is_on_disk_within_a_second(how, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HANG), str(tmp_path / "dump"), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "hanging\n", process.stderr.read()
        deadline, recorded = time.monotonic() + (1.0 if how == "asleep" else 3.0), set()
        while recorded != {"mul", "cos"} and time.monotonic() < deadline:
            time.sleep(0.05)
            for run in SessionDir(tmp_path / "dump"):
                recorded = {each.node_name for each in run.open(validate=False).dumped_tensor_data}
        assert not select.select([process.stdout], [], [], 0)[0], "the op was too quick"
        assert recorded == {"mul", "cos"}
    finally:
        process.kill()
        process.communicate()


# Failing ops


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mm(torch.ones(7, 7))  # the line of the backward failure


def failing_step(kind):
    model = nn.Linear(4, 4)

    def forward(x, fail):
        hidden = model(x)
        if fail:
            hidden.mm(x)  # the line of the forward failure
        hidden.sum().backward()

    def backward(x, fail):
        hidden = model(x)
        (FailsInBackward.apply(hidden) if fail else hidden.clone()).sum().backward()

    return {"forward": forward, "backward": backward}[kind]


@pytest.mark.parametrize("good_runs", [0, 1, 3])
@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_an_error_of_an_op_is_mapped_to_its_node_and_line(kind, good_runs):
    found = {}
    for interceptor in ("dispatch", "native"):
        session = tt.torch.Session(failing_step(kind), interceptor=interceptor)
        x = torch.ones(2, 4)
        for _ in range(good_runs):
            session.run(None, {"x": x, "fail": False}, WATCH)
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"test_observer\.py:\d+") as caught:
                session.run(None, {"x": x, "fail": True}, WATCH)
        node = caught.value.node
        assert node.op_type == "aten::mm"
        line = Path(__file__).read_text().splitlines()[node.source.line - 1]
        assert f"the line of the {kind} failure" in line
        session.run(None, {"x": x, "fail": False}, WATCH)
        assert session.faults == 0
        found[interceptor] = node
    # Where the op would have run is known to the native interceptor only.
    assert found["native"] == replace(found["dispatch"], device=found["native"].device)


def test_the_first_failure_is_forgotten_when_the_program_goes_on():
    def step(x, then):
        try:
            x.mm(torch.ones(7, 7))
        except RuntimeError:
            pass
        if then == "raise":
            raise RuntimeError("mine")
        if then == "assert":
            raise AssertionError("mine")
        if then == "numpy":
            (x.requires_grad_() * 2).numpy()
        if then == "other op":
            x.bmm(x)
        return x

    session = tt.torch.Session(step)
    for _ in range(3):
        x = torch.ones(2, 3)
        session.run(None, {"x": x, "then": ""}, WATCH)
        with pytest.raises(RuntimeError, match=r"^mine$") as caught:
            session.run(None, {"x": x, "then": "raise"}, WATCH)
        assert type(caught.value) is RuntimeError
        with pytest.raises(AssertionError, match=r"^mine$"):
            session.run(None, {"x": x, "then": "assert"}, WATCH)
        with pytest.raises(InvalidArgumentError) as caught:
            session.run(None, {"x": x, "then": "other op"}, WATCH)
        assert caught.value.node.op_type == "aten::bmm"
        with pytest.raises(InvalidArgumentError, match="numpy") as caught:
            session.run(None, {"x": x, "then": "numpy"}, WATCH)
        assert caught.value.node is None


@pytest.mark.parametrize("interceptor", ["dispatch", "native"])
def test_an_error_that_is_of_no_op_has_no_node_although_an_op_failed_on_the_same_line(interceptor):
    def call(function, *arguments):
        return function(*arguments)

    def step(x):
        try:
            call(torch.mm, x, x)
        except RuntimeError:
            pass
        return call(torch.Tensor.numpy, x * 2)

    session = tt.torch.Session(step, interceptor=interceptor)
    with pytest.raises(InvalidArgumentError, match="numpy") as caught:
        session.run(None, {"x": torch.ones(2, 3, requires_grad=True)}, WATCH)
    assert caught.value.node is None


# Scopes


class Fragile(Optimizer):
    """Does some of its work, then raises."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.5)
        raise ValueError("too steep")


@pytest.mark.parametrize("runs", [1, 3])
def test_after_an_optimizer_that_raised_ops_are_not_its_own(runs):
    weight = nn.Parameter(torch.ones(2))
    fragile, fine = Fragile([weight]), torch.optim.SGD([weight], lr=0.1)

    def helper(x):
        return x.cos()

    def deeper(x):
        return helper(x.sin())

    def step(x):
        try:
            fragile.step()
        except ValueError:
            pass
        y = helper(x)  # in the place on the stack where the optimizer was
        y = deeper(y)
        (weight * y).sum().backward()
        fine.step()
        return y.tanh()

    session = tt.torch.Session(step, optimizers={"fragile": fragile, "fine": fine}, modules={})
    for _ in range(runs):
        names = names_of(session, {"x": torch.ones(2)})
    assert [name for name in names if name in ("cos", "sin", "cos_1", "tanh")] == [
        "cos",
        "sin",
        "cos_1",
        "tanh",
    ]
    assert [name for name in names if name.startswith("optimizer/Fragile/") and "mul" in name] == [
        "optimizer/Fragile/param_0/mul_"
    ]


def test_sessions_inside_sessions(tmp_path):
    model = nn.Linear(3, 3)
    inner = tt.torch.Session(lambda x: {"y": model(x).cos()}, modules={"inner": model})

    def step(x):
        before = x.sin()
        y = inner.run(None, {"x": before}, WATCH)["y"]
        return {"y": y.tanh()}

    plain = model(torch.ones(1, 3).sin()).cos().tanh()
    outer = tt.torch.Session(step, modules={"outer": model})
    for _ in range(3):
        metadata = tt.RunMetadata()
        options = tt.RunOptions(output_partition_graphs=True)
        result = outer.run(None, {"x": torch.ones(1, 3)}, options, metadata)
        assert torch.equal(result["y"], plain)
        names = [node.name for node in metadata.nodes]
        assert names.index("sin") < names.index("tanh")
    assert outer.faults == inner.faults == 0
    assert {"inner/addmm", "cos"} <= names_in(inner.graph)
    assert not {"inner/addmm", "sin"} & names_in(outer.graph) - {"sin"}


def test_a_session_that_runs_itself():
    def step(depth):
        y = torch.ones(1).cos()
        return {"y": y + sessions[0].run(None, {"depth": depth - 1}, WATCH)["y"] if depth else y}

    sessions = []
    session = tt.torch.Session(step)
    sessions.append(session)
    for _ in range(2):
        result = session.run(None, {"depth": 2}, WATCH)["y"]
        assert float(result) == pytest.approx(3 * float(torch.ones(1).cos()))
    assert session.faults == 0


# What is watched


def test_patterns_that_change_from_run_to_run(tmp_path):
    patterns = ["model/0/", "model/2/", "gradients/", None, "model/0/", "nothing at all", "model/2/"]
    turn = iter(patterns)

    def watch(fetches, feeds):
        pattern = next(turn)
        debug_op = "DebugIdentity" if pattern == "gradients/" else "DebugNumericSummary"
        return tt.WatchOptions([debug_op], node_name_regex_allowlist=pattern)

    case = ZOO["sgd_momentum"]()
    inner = session_of(case)
    with dumping(inner, tmp_path / "dump", watch) as session:
        for run in range(len(patterns)):
            session.run(None, case.batch(run))
    assert inner.faults == 0
    seen = []
    for run in SessionDir(tmp_path / "dump"):
        data = run.open().dumped_tensor_data
        seen.append({(each.tensor_name, each.debug_op) for each in data})
        assert len(data) == len(seen[-1])
    for pattern, tensors in zip(patterns, seen, strict=True):
        assert bool(tensors) == (pattern != "nothing at all")
        assert all(name.startswith(pattern or "") for name, _ in tensors)
    assert seen[0] == seen[4]
    assert seen[1] == seen[6]
    assert {op for _, op in seen[2]} == {"DebugIdentity"}
    assert {name for name, _ in seen[3]} >= {"model/0/addmm:0", "gradients/model/0/weight:0"}


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
    *(torch.complex32, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]


def of_every_shape(dtype):
    """Tensors of random bits, NaNs and infinities among them; booleans are 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    size = torch.empty((), dtype=dtype).element_size()
    high = 2 if dtype is torch.bool else 256
    bits = torch.randint(high, (512 * size,), dtype=torch.uint8, generator=generator)
    flat = bits.view(dtype)
    whole = flat.view(16, 32)
    return {
        "whole": whole,
        "transposed": whole.t(),
        "strided": whole[1::3, 2::5],
        "broadcast": whole[:1].expand(4, 32),
        "empty": flat[:0].view(0, 3),
        "scalar": flat[7],
        "rank9": flat.view((2,) * 9),
        "rank8": flat.view((2,) * 7 + (4,)),
        "last": flat[-1:],
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_records_are_those_of_the_dispatch_mode_byte_for_byte(dtype, tmp_path):
    def step(tensors):
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def watch(fetches, feeds):
        ops = ["DebugIdentity", "DebugNumericSummary(lower_bound=-1; upper_bound=1)"]
        return tt.WatchOptions(ops, node_name_regex_allowlist=".*")

    records = {}
    for interceptor in ("dispatch", "native"):
        inner = tt.torch.Session(step, interceptor=interceptor)
        with dumping(inner, tmp_path / interceptor, watch) as session:
            for _ in range(2):
                session.run(None, {"tensors": of_every_shape(dtype)})
        assert inner.faults == 0
        records[interceptor] = {
            (number, datum.watch_key): np.asarray(datum.get_tensor())
            for number, run in enumerate(SessionDir(tmp_path / interceptor))
            for datum in DebugDumpDir(run.path).dumped_tensor_data
        }
    assert records["native"].keys() == records["dispatch"].keys()
    assert len(records["native"]) >= 2 * 2 * 9
    for key, expected in records["dispatch"].items():
        value = records["native"][key]
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape), key
        assert value.tobytes() == expected.tobytes(), key
    expected = of_every_shape(dtype)
    for name, tensor in expected.items():
        value = records["native"][0, f"tensors/{name}:0:DebugIdentity"]
        assert value.shape == tuple(tensor.shape)
        if tensor.numel() and dtype != torch.complex32:  # which NumPy does not have
            assert value.tobytes() == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), (
                name
            )


def test_large_tensors_are_summarised_by_all_threads_with_the_same_result(tmp_path):
    values = torch.randn(700, 401, generator=torch.Generator().manual_seed(0)) * 3 + 5
    bad = values.clone()
    bad[0, 0], bad[300, 7], bad[699, 400] = float("inf"), float("nan"), float("-inf")
    inputs = {"values": values, "bad": bad, "nothing": torch.full((700, 401), float("nan"))}
    session = tt.torch.Session(lambda values, bad, nothing: {"sum": values.sum() + bad.sum() + nothing.sum()})
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            with dumping(session, tmp_path / str(number)) as watched:
                watched.run(None, inputs)
    finally:
        torch.set_num_threads(threads)

    def pills(number):
        (run,) = SessionDir(tmp_path / str(number)).runs
        found = DebugDumpDir(str(run.path))
        return [found.get_tensors(name, 0, "DebugNumericSummary")[0] for name in inputs]

    for number in (2, 5):
        for one, many in zip(pills(1), pills(number), strict=True):
            np.testing.assert_array_equal(many[:10], one[:10])
            np.testing.assert_allclose(many, one, rtol=1e-12)


def test_printing_a_tensor_is_no_part_of_the_program(capsys):
    layer = nn.Linear(3, 3)

    def step(x, show):
        y = layer(x)
        if show:
            print(y, y.mean() > 0)
        return {"y": (y * 2).mean() > 0}

    session = tt.torch.Session(step, modules={"layer": layer})
    quiet = names_of(session, {"x": torch.randn(200, 3), "show": False})
    assert names_of(session, {"x": torch.randn(200, 3), "show": True}) == [
        *quiet[:-3],
        "mean",
        "gt",
        *quiet[-3:-2],
        "mean_1",
        "gt_1",
    ]
    assert "tensor(" in capsys.readouterr().out


# --- the kernel in the place of PyTorch's own -----------------------------------------------------------


def included_keys():
    return str(torch._C._dispatch_tls_local_include_set())


def test_the_dispatch_key_is_on_in_runs_only(monkeypatch):
    monkeypatch.delitem(
        sys.modules, "tensortap.engines.torch.compiled", raising=False
    )  # of another test's program
    before, during = included_keys(), []
    with tt.torch.Session(lambda: during.append(included_keys())) as session:
        session.run(None, options=WATCH)
        assert session.faults == 0
    assert during != [before]
    assert included_keys() == before


def test_operators_that_are_dispatched_in_python_go_past_it():
    def step():
        chosen = torch.cond(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (torch.ones(2),))
        return {"chosen": chosen}

    with tt.torch.Session(step) as session:
        assert np.allclose(session.run("chosen", options=WATCH), np.sin(1.0))
        assert "sin" in names_of(session)


def test_a_session_inside_of_an_operator_sees_its_own():
    inner_names = []

    @torch.library.custom_op("tensortap_tests::runs_a_session", mutates_args=())
    def runs_a_session(x: torch.Tensor) -> torch.Tensor:
        with tt.torch.Session(lambda: {"y": x.exp().neg()}) as inner:
            inner_names.extend(names_of(inner))
        return x + 1

    with tt.torch.Session(lambda: {"z": runs_a_session(torch.zeros(2)).mul(3)}) as outer:
        names = names_of(outer)
    assert [name for name in inner_names if "/" not in name] == ["exp", "neg"]
    assert "runs_a_session" in names
    assert "mul" in names
    assert "exp" not in names


def test_the_profiler_of_the_program_sees_the_same_operators():
    def operators_of(call):
        with torch.profiler.profile() as profile:
            call()
        return Counter(event.name for event in profile.events() if event.name.startswith("aten::"))

    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with tt.torch.Session(lambda: {"loss": model(x).sum()}, modules={"model": model}) as session:
        session.run(None, options=WATCH)
        alone = operators_of(lambda: model(x).sum())
        assert alone <= operators_of(lambda: session.run(None, options=WATCH))
