"""Programs that once went wrong under observation, each as small as it gets."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import tensortap as tt
from tensortap.errors import FeedError, UnknownTensorError
from tests.patience import patient

pytestmark = pytest.mark.usefixtures("interceptor")

WATCH = tt.RunOptions(taps=[lambda node, slot, tensor: None])


def nodes_of(session, feeds=None):
    metadata = tt.RunMetadata()
    session.run(None, feeds, tt.RunOptions(output_partition_graphs=True), metadata)
    return metadata.nodes


def test_a_tensor_whose_memory_was_freed_is_not_read():
    def step(x):
        a = x * 2
        a.untyped_storage().resize_(0)  # what sharding does to gathered weights
        view = a.view(-1)
        a.untyped_storage().resize_(4 * x.numel())
        return {"n": torch.tensor(view.numel())}

    seen = []
    session = tt.torch.Session(step)
    session.run(None, {"x": torch.ones(300, 300)}, tt.RunOptions(taps=[lambda n, s, t: seen.append(t.sum())]))
    with pytest.raises(UnknownTensorError, match="memory had been freed"):
        session.run("view:0", {"x": torch.ones(300, 300)})


def test_conjugated_views_inside_kernels_are_seen_as_such():
    torch.manual_seed(0)
    z = torch.randn(3, 3, dtype=torch.complex64)
    watched = tt.torch.Session(lambda: {"y": torch.linalg.pinv(z)}).run(None, options=WATCH)["y"]
    torch.testing.assert_close(watched, torch.linalg.pinv(z))


def test_a_module_called_twice_with_tensors_from_outside():
    net, a, b = nn.Linear(3, 2), torch.zeros(1, 3), torch.ones(1, 3)
    seen = {}
    with tt.torch.monitor(net) as m:
        with m.run(options=tt.RunOptions(taps=[lambda n, s, t: seen.setdefault(n.tensor(s), t.clone())])):
            net(a)
            net(b)
    assert torch.equal(seen["model/input:0"], a)
    assert torch.equal(seen["model/input_1:0"], b)


DISTRIBUTED = """
import sys, torch, torch.distributed as dist, tensortap as tt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
for watched in ("both", "first"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step(x):
        loss = model(x).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        return {"loss": loss}
    session = tt.torch.Session(step)
    watch = tt.RunOptions(taps=[lambda n, s, t: None]) if rank == 0 or watched == "both" else None
    for run in range(3):
        session.run(None, {"x": torch.ones(2, 3) * (rank + 1)}, watch)
    device = session.graph.nodes[-1].device if watch else ""
    named = f"task:{rank}" in device or watch is None
    print(session.faults, named, sum(p.sum().item() for p in model.parameters()))
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_train_alike_whoever_is_watched(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DISTRIBUTED, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=patient(120)) for process in ranks]
    (first, errors), (second, _) = outputs
    assert first == second, errors
    both, only_first = first.splitlines()
    assert both == only_first
    assert both.startswith("0 True")


@pytest.mark.parametrize("detached_first", [False, True])
def test_gradients_stop_at_a_fed_tensor_even_if_it_is_looked_at_detached_first(detached_first):
    linear = nn.Linear(3, 3)

    def step(x):
        linear.zero_grad()
        hidden = linear(x)
        if detached_first:
            hidden.detach().mean()
        hidden.square().sum().backward()
        return {"grad": linear.weight.grad}

    session = tt.torch.Session(step)
    assert session.run("grad", {"x": torch.ones(2, 3), "linear/addmm:0": torch.ones(2, 3)}) is None


def test_only_the_fed_output_of_several_is_a_constant():
    x = torch.arange(1.0, 5.0, requires_grad=True)

    def step():
        x.grad = None
        low, high = torch.aminmax(x)
        (low * 10 + high).backward()
        return {"grad": x.grad}

    session = tt.torch.Session(step)
    np.testing.assert_array_equal(session.run("grad"), [10, 0, 0, 1])
    np.testing.assert_array_equal(session.run("grad", {"aminmax:1": np.float32(9)}), [10, 0, 0, 0])


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(3) * index


def test_forked_data_loader_workers_are_not_part_of_the_run(tmp_path):
    main = os.getpid()
    log = os.open(tmp_path / "pids", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def tap(node, slot, tensor):
        os.write(log, b"main\n" if os.getpid() == main else b"child\n")

    def step():
        loader = torch.utils.data.DataLoader(
            Noise(), batch_size=2, num_workers=1, multiprocessing_context="fork"
        )
        return {"total": sum(batch.sum() for batch in loader)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about forking with threads
        total = tt.torch.Session(step).run("total", options=tt.RunOptions(taps=[tap]))
    assert total == 18
    assert set((tmp_path / "pids").read_text().split()) == {"main"}


def test_two_threads_observing_leave_compilation_as_it_was():
    import torch._dynamo.eval_frame as eval_frame
    from torch.utils import _python_dispatch as modes

    def flags():
        return {name: flag for name, flag in vars(modes).items() if name.startswith("_is_in_")}

    before = flags()
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first(x):
        first_in.set()
        second_in.wait(patient(10))
        return x + 1

    def second(x):
        second_in.set()
        first_out.wait(patient(10))
        return x + 2

    def run(step):
        tt.torch.Session(step).run(None, {"x": torch.ones(1)}, WATCH)

    a = threading.Thread(target=lambda: (run(first), first_out.set()))
    b = threading.Thread(target=lambda: run(second))
    a.start()
    first_in.wait(patient(10))
    b.start()
    a.join()
    b.join()
    assert eval_frame._stance.stance == "default"
    assert flags() == before
    assert len(before) > 1


def test_nested_tensors_and_the_encoder_fast_path():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    padding = torch.tensor([[False, False, True]])
    rows = [torch.ones(2, 8), torch.ones(3, 8)]

    def step(x):
        with torch.no_grad():
            ragged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
            return {"y": encoder(x, src_key_padding_mask=padding), "r": ragged * 2}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that nested tensors are a prototype
        session = tt.torch.Session(step)
        nodes = nodes_of(session, {"x": torch.randn(1, 3, 8)})
    assert session.faults == 0
    assert session.graph_def.ByteSize()
    assert len(nodes) > 5


def test_lazy_modules():
    model = nn.Sequential(nn.LazyLinear(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = tt.torch.Session(lambda x: {"y": model(x)})
        assert session.run("model/0/addmm:0", {"x": torch.ones(2, 3)}).shape == (2, 4)
    session.run(None, {"x": torch.ones(2, 3)}, WATCH)
    assert session.run("model/0/weight:0").shape == (4, 3)


def test_a_backward_pass_of_a_graph_from_before_the_run():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    kept = [model(torch.ones(1, 3)).sum()]

    def late():
        kept[0].backward()
        return {"y": model(torch.ones(1, 3))}

    made = set()
    for node in nodes_of(tt.torch.Session(late, modules={"model": model})):
        assert set(node.inputs) <= made, node.name
        made |= {node.tensor(slot) for slot in range(len(node.outputs))}


@pytest.mark.parametrize("options", [None, WATCH], ids=["plain", "watched"])
def test_the_tensors_of_a_failed_step_are_freed_at_once(options):
    alive = []

    def step():
        activation = torch.zeros(1000)
        alive.append(weakref.ref(activation))
        return activation @ torch.ones(3, 3)

    session = tt.torch.Session(step)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(RuntimeError):
            session.run(None, options=options)
        sys.exc_info()
        assert alive[0]() is None
    finally:
        gc.enable()


def test_constants_inside_an_optimizer_do_not_make_it_quadratic():
    class Own(Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad * torch.tensor(0.1))

    class Counting(dict):
        scans = 0

        def get(self, key, default=None):
            Counting.scans += 1
            return super().get(key, default)

    model = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(100)])
    optimizer = Own(model.parameters())
    optimizer.state = Counting()

    def step():
        sum(p.sum() for p in model).backward()
        optimizer.step()

    tt.torch.Session(step).run(None, options=WATCH)
    assert Counting.scans < 1000


def test_state_made_since_the_graph_was_traced_can_be_fetched():
    linear = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(linear.parameters())

    def step(x):
        linear(x).sum().backward()
        optimizer.step()

    session = tt.torch.Session(step)
    session.run(None, {"x": torch.ones(1, 2)}, WATCH)
    assert session.run("optimizer/Adam/linear/weight/exp_avg:0").shape == (1, 2)
    assert session.run("optimizer/Adam/linear/weight/exp_avg").shape == (1, 2)


def test_a_warning_that_was_shown_once_is_not_shown_again_by_watching():
    def step():
        warnings.warn("mine", UserWarning, stacklevel=1)

    session = tt.torch.Session(step)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(5):
            session.run(None, options=WATCH)
    assert len([each for each in shown if str(each.message) == "mine"]) == 1


def test_feeding_nested_inputs_and_what_cannot_be_changed():
    session = tt.torch.Session(lambda batch: {"y": batch["ids"] * 2})
    y = session.run("y", {"batch": {"ids": torch.ones(2)}, "batch/ids:0": torch.tensor([5.0, 6.0])})
    assert y.tolist() == [10, 12]

    module = nn.Module()
    module.register_buffer("wide", torch.ones(1).expand(4))
    other = tt.torch.Session(lambda: {"y": module.wide * 2}, modules={"m": module})
    with pytest.raises(FeedError, match="m/wide:0"):
        other.run("y", {"m/wide:0": torch.zeros(4)})


def test_feeding_a_parameter_leaves_graphs_from_before_usable():
    linear = nn.Linear(2, 1)
    kept = linear(torch.ones(1, 2, requires_grad=True)).sum()
    session = tt.torch.Session(lambda x: {"y": linear(x)})
    session.run("y", {"x": torch.ones(1, 2), "linear/weight:0": torch.zeros(1, 2)})
    kept.backward()


def test_an_optimizer_that_raised_is_no_scope_any_more():
    class Bad(Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self):
            raise ValueError("bad")

    optimizer = Bad([nn.Parameter(torch.ones(1))])

    def step(x):
        try:
            optimizer.step()
        except ValueError:
            pass
        return x * 2

    names = [node.name for node in nodes_of(tt.torch.Session(step), {"x": torch.ones(1)})]
    assert "mul" in names


def test_a_session_inside_a_session_leaves_no_trace_in_the_outer_graph():
    inner = tt.torch.Session(lambda x: {"y": x + 1})

    def step(x):
        return inner.run(None, {"x": x}, WATCH)["y"] * 2 + float(inner.run("add:0", {"x": x}).sum())

    names = [node.op_type for node in nodes_of(tt.torch.Session(step), {"x": torch.ones(1)})]
    assert "aten::clone" not in names


def test_memory_does_not_grow_over_watched_runs():
    program = textwrap.dedent("""
        import resource, torch, tensortap as tt
        from torch import nn
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def step(x):
            model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
        session = tt.torch.Session(step)
        watch = tt.RunOptions(taps=[lambda n, s, t: None])
        def run(times):
            for _ in range(times):
                session.run(None, {"x": torch.ones(2, 8)}, watch)
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        before = run(100)
        print((run(300) - before) / 300)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 4096, "bytes a run"


def test_every_kind_of_step():
    model = nn.Linear(2, 1)

    def step(x, scale):
        return {"y": model(x) * scale}

    class Callable:
        def __init__(self):
            self.net = model

        def __call__(self, x):
            return {"y": self.net(x)}

    x = torch.ones(1, 2)
    partial = tt.torch.Session(functools.partial(step, scale=2.0))
    assert partial.run("model/addmm:0", {"x": x}).shape == (1, 1)
    assert tt.torch.Session(Callable()).run("net/addmm:0", {"x": x}).shape == (1, 1)
    assert tt.torch.Session(model).run("model/addmm:0", {"input": x}).shape == (1, 1)


def test_mistakes_are_named():
    def generator():
        yield 1

    async def coroutine():
        pass

    for step in (generator, coroutine):
        with pytest.raises(TypeError, match="executes nothing"):
            tt.torch.Session(step)
    with pytest.raises(TypeError, match="global_step"):
        tt.torch.Session(lambda global_step: None)
    with pytest.raises(TypeError, match="feed_dict="):
        tt.torch.Session(lambda x: x).run({"x": torch.ones(1)})
    for taps in (print, [3]):
        with pytest.raises(TypeError, match="list of functions"):
            tt.RunOptions(taps=taps)
    with pytest.raises(TypeError, match="maps names"):
        tt.torch.Session(lambda: None, extras=[1])
    with pytest.raises(TypeError, match="no state_dict"):
        tt.torch.Session(lambda: None, extras={"a": 3})
    with pytest.raises(TypeError, match="graph="):
        tt.torch.Session(lambda: None, graph=3)
    with pytest.raises(TypeError, match="global_step="):
        tt.torch.Session(lambda: None, global_step="a")
    with tt.torch.monitor(nn.Linear(1, 1)) as m, m.run():
        with pytest.raises(RuntimeError, match="nested"):
            with m.run():
                pass


def test_compiling_for_the_first_time_inside_a_watched_run():
    """PyTorch refuses to compile under a dispatch mode and remembers that, so it must not even try."""
    program = textwrap.dedent("""
        import torch, tensortap as tt
        from tests.torch_engine.zoo import perceptron
        model = perceptron()
        made = []
        def step(x):
            if not made:
                made.append(torch.compile(model, backend="aot_eager"))
            return {"y": made[0](x)}
        session = tt.torch.Session(step, modules={"model": model})
        x = torch.randn(2, model[0].in_features)
        session.run("model/0/addmm:0", {"x": x})
        session.run(None, {"x": x})
        with torch.profiler.profile() as profile:
            session.run(None, {"x": x})
        print(any("Torch-Compiled Region" in event.key for event in profile.key_averages()))
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip().endswith("True"), done.stderr


def test_a_step_that_refers_to_its_own_session():
    def step(x):
        return {"y": x, "step": session.global_step}

    session = tt.torch.Session(step)
    assert session.run("step", {"x": torch.ones(1)}) == 0


def test_inputs_of_a_step_are_let_go_without_a_garbage_collection():
    alive = []
    session = tt.torch.Session(lambda x: alive.append(weakref.ref(x)))
    gc.disable()
    try:
        session.run(None, {"x": torch.ones(2)})
        assert alive[0]() is None
    finally:
        gc.enable()


def test_an_interrupt_in_the_middle_of_our_own_work_reaches_the_program(tmp_path):
    """Ctrl-C may arrive while we decode what is new, inside of an op."""
    model = nn.Linear(16, 16)

    def step(x):
        for _ in range(400):
            x = model(x).tanh()
        x.sum().backward()

    sessions = []  # kept: Python itself loses an interrupt that arrives in a destructor
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    gc.disable()
    try:
        for tenths in range(6):
            signal.setitimer(signal.ITIMER_REAL, 0.02 + tenths * 0.01)
            with pytest.raises(KeyboardInterrupt):
                for _ in range(100):
                    sessions.append(tt.torch.Session(step, modules={"model": model}, optimizers={}))
                    options = tt.RunOptions(output_partition_graphs=True)
                    sessions[-1].run(None, {"x": torch.randn(2, 16)}, options)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        gc.enable()


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))

    def forward(self, x):
        y = self.layers(x).clone()
        y[:, 0] = 3
        return (y.view(y.shape[0], -1).t() @ y + 2) * 3 + 2


@pytest.mark.filterwarnings("ignore:.torch.jit.trace.* is deprecated")
def test_a_trace_recorded_in_a_watched_run_holds_nothing_of_ours():
    net, x = Convolution(), torch.ones(2, 1, 6, 6)

    def graph():
        traced = torch.jit.trace(net, x)
        assert torch.equal(traced(x), net(x))
        return re.sub(r"___torch_mangle_\d+\.", "", str(traced.inlined_graph))

    recording = {name: vars(torch._C)[name] for name in vars(torch._C) if "trac" in name}
    plain = graph()
    with tt.torch.monitor(net) as m:
        for _ in range(2):
            with m.run(options=WATCH):
                net(x)
                assert graph() == plain
    assert recording == {name: vars(torch._C)[name] for name in recording}
