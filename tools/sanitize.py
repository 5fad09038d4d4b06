"""The programs that tools/sanitize.sh runs under the sanitizers: `python sanitize.py NAME`, or `list` for their names.

`kernel` and `zoo` are what users do, on memory and models of every kind. The others are out to break the observer:
callbacks that fail half-way, threads that outlive a run, code of the user inside our own.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

HOSTILE: dict[str, Callable[[], None]] = {}


def hostile(program: Callable[[], None]) -> Callable[[], None]:
    """Registers a program under its own name."""
    HOSTILE[program.__name__] = program
    return program


# The kernel

_SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "bcomplex32": 4,
    "complex64": 8,
    "complex128": 16,
}
_COUNTS = [*range(18), 31, 33, 63, 64, 65, 71, 127, 128, 2047, 2048, 2049, 2111, 2112, 2113, 4161, 5000]
_ODD = [  # no element, or so many that products of them overflow
    ((), ()),
    ((0,), (1,)),
    ((0, 3), (-3, -1)),
    ((1,), (2**62,)),
    ((2**31, 2**33), (0, 0)),
    ((2**40, 2**40, 0), (2**40, 1, 1)),
    ((0, 2**40, 2**40), (1, 1, 1)),
]


def kernel() -> None:
    """Every dtype, count, alignment and layout, in memory that ends where the elements end."""
    from tensortap.ops import kernel as loader
    from tensortap.ops.dtypes import CODES

    native: Any = loader.native()
    assert native is not None, "the sanitized kernel does not load"
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    bounds = ((float("-inf"), float("inf")), (-1.0, 1.0), (float("nan"), 0.0))

    def look(address: int, code: int, shape: Any, strides: Any) -> None:
        for lower, upper in bounds:
            native.summary(address, code, shape, strides, lower, upper, None)
        native.nan_count(address, code, shape, strides)

    chance = random.Random(0)
    for isa in {"portable", native.isa()}:
        native.use_isa(isa)
        for name, code in CODES.items():
            width = _SIZES.get(name, 1)
            for count in _COUNTS:
                for offset in (0, 1, 4):
                    nbytes = count * width + offset
                    address = libc.malloc(nbytes)
                    ctypes.memmove(address, chance.randbytes(nbytes), nbytes)
                    look(address + offset, code, (count,), (1,))
                    libc.free(address)
            for _ in range(60):
                shape, strides = _layout(chance)
                reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
                below = sum(each for each in reach if each < 0)
                nbytes = (sum(each for each in reach if each > 0) - below + 1) * width
                address = libc.malloc(nbytes)
                ctypes.memset(address, chance.randrange(256), nbytes)
                look(address - below * width, code, shape, strides)
                libc.free(address)
            address = libc.malloc(16)
            ctypes.memset(address, 0, 16)
            for shape, strides in _ODD:
                look(address, code, shape, strides)
            look(0, code, (0,), (1,))
            look(0, code, (4,), (-1,))
            libc.free(address)


def _layout(chance: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape with strides: permuted, broadcast, reversed, with gaps."""
    shape = [chance.choice([1, 2, 3, 5, 7, 20]) for _ in range(chance.randint(1, 4))]
    strides, step = [0] * len(shape), chance.choice([1, 1, 2, 3])
    for dimension in chance.sample(range(len(shape)), len(shape)):
        if chance.random() > 0.15:
            strides[dimension] = step * chance.choice([1, 1, -1])
            step *= shape[dimension] * chance.choice([1, 1, 2])
    return tuple(shape), tuple(strides)


# What users do


def _watch(*debug_ops: str) -> Any:
    import tensortap as tt
    from tensortap.watch.match import watch_run

    options = tt.RunOptions()
    watch_run(options, tt.WatchOptions(list(debug_ops)), f"file://{tempfile.mkdtemp(dir=_scratch())}")
    return options


def _tap(tap: Callable[..., Any] = lambda node, slot, tensor: None) -> Any:
    import tensortap as tt

    return tt.RunOptions(taps=[tap])


def _scratch() -> str:
    return os.environ.setdefault("SANITIZE_SCRATCH", tempfile.mkdtemp())


def _session(step: Any, **options: Any) -> Any:
    import tensortap as tt

    return tt.torch.Session(step, **options)


def zoo() -> None:
    """Every program of the zoo: summaries, values and taps in turn, so that everything is seen again; and errors."""
    from tests.torch_engine.zoo import ZOO, make_exception_mid_step, make_op_error

    for make in (*ZOO.values(), make_exception_mid_step, make_op_error):
        case = make()
        session = _session(case.step, modules=case.modules, optimizers=case.optimizers)
        watches = (_watch("DebugNumericSummary"), _watch("DebugNumericSummary", "DebugIdentity"), _tap())
        errors = 0
        for run in range(6):
            try:
                session.run(None, case.batch(run % 2), watches[run % 3])
            except Exception:
                errors += 1
        print(case.name, "errors:", errors, "faults:", session.faults, flush=True)
        assert bool(errors) == case.name.endswith(("mid_step", "op_error")), case.name
        assert session.faults == 0, case.name


# Programs that are out to break the observer


@contextmanager
def _answered_by(name: str, answer: Callable[..., Any]) -> Iterator[None]:
    """Have a question of observers that are made in the block answered by a function that is given the real one."""
    from tensortap.engines.torch.observer.answers import Answers

    come_from = Answers.come_from

    def come_from_elsewhere(self: Any, *args: Any) -> None:
        come_from(self, *args)
        setattr(self, name, functools.partial(answer, getattr(self, name)))

    Answers.come_from = come_from_elsewhere  # type: ignore[method-assign]
    try:
        yield
    finally:
        Answers.come_from = come_from  # type: ignore[method-assign]


@hostile
def callbacks_that_fail_now_and_then() -> None:
    """Each question to Python fails once, early or late; memory may run out anywhere."""
    from tensortap.engines.torch.observer.answers import Answers
    from tests.torch_engine.zoo import ZOO

    source = inspect.getsource(Answers.come_from)
    asked = {*re.findall(r"self\.(\w+) =", source), "classify", "tensor_class", "in_place_of"} - {"fault"}
    assert len(asked) > 3
    for name in sorted(asked):
        for when in (1, 2, 5, 20):
            left = [when]

            def sometimes(real: Any, *args: Any, _left: Any = left) -> Any:
                _left[0] -= 1
                if _left[0] == 0:
                    raise MemoryError
                return real(*args)

            with _answered_by(name, sometimes):
                case = ZOO["adamw_forloop"]()
                session = _session(case.step, modules=case.modules, optimizers=case.optimizers)
                for run in range(3):
                    session.run(None, case.batch(run), _watch("DebugNumericSummary", "DebugIdentity"))


@hostile
def taps_that_call_modules() -> None:
    """A tap runs a model of its own, with hooks, in the middle of our work."""
    import torch
    from torch import nn

    model = nn.Linear(3, 3)
    probe = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Softmax(-1))

    def step(x: torch.Tensor) -> dict[str, Any]:
        for _ in range(5):
            x = torch.topk(model(x), 3).values + 0
        return {"x": x}

    def tap(node: Any, slot: int, tensor: torch.Tensor) -> None:
        if tensor.dtype == torch.float32 and tensor.shape[-1:] == (3,):
            with torch.no_grad():
                probe(tensor)

    session = _session(step, modules={"model": model})
    for _ in range(3):
        session.run(None, {"x": torch.ones(2, 3)}, _tap(tap))
    assert not [node.name for node in session.graph.nodes if "layer_norm" in node.name], (
        "ops of the tap were taken"
    )


@hostile
def values_larger_than_a_block() -> None:
    """Copies that have a block of their own, whose size is no multiple of what rows are aligned to."""
    import torch

    def take(real: Any, lane: int, rows: Any, data: Any, *rest: Any) -> None:
        read.append(len(bytes(memoryview(rows))) + len(bytes(memoryview(data))))  # all that is handed over
        real(lane, rows, data, *rest)

    read: list[int] = []
    with _answered_by("take", take):
        session = _session(lambda x: {"y": (x + 1)[:5] * 2})
        for extra in (0, 1, 63, 64):
            large = torch.zeros((4 << 20) + extra, dtype=torch.uint8)
            session.run(None, {"x": large}, _watch("DebugIdentity"))
    assert sum(read) > 16 << 20, "values were not handed over"


def _forked_work() -> tuple[Any, Any]:
    """A step that leaves an op running in a thread of PyTorch, and the list that gets to know it."""
    import torch

    @torch.jit.script
    def slow(x):  # type: ignore[no-untyped-def]
        return torch.mm(x, x)

    @torch.jit.script
    def launch(x):  # type: ignore[no-untyped-def]
        return torch.jit.fork(slow, x)

    big, running = torch.randn(4000, 4000), []

    def step(x: torch.Tensor) -> dict[str, Any]:
        for _ in range(200):
            x = x + 1
        running.append(launch(big))
        time.sleep(0.5)
        return {"x": x}

    return step, running


@hostile
def a_thread_that_outlives_its_session() -> None:
    """The session is gone when an op ends that it saw beginning."""
    import torch

    step, running = _forked_work()
    session = _session(step)
    session.run(None, {"x": torch.ones(2)}, _tap())
    del session
    gc.collect()
    running[0].wait()


@hostile
def a_thread_that_meets_the_next_session() -> None:
    """Another session runs when an op ends that the first one saw beginning."""
    import torch

    step, running = _forked_work()
    _session(step).run(None, {"x": torch.ones(2)}, _tap())

    def wait(x: torch.Tensor) -> dict[str, Any]:
        while not running[0].done():
            x = x * 2
            time.sleep(0.01)
        return {"x": x}

    _session(wait).run(None, {"x": torch.ones(2)}, _tap())


@hostile
def ops_in_threads_of_pytorch() -> None:
    """Backward passes nested so deeply that autograd takes other threads, which have no Python frame."""
    import torch
    from torch import nn

    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
            ctx.depth = depth
            ctx.save_for_backward(x)
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            if ctx.depth > 0:
                with torch.enable_grad():
                    x = ctx.saved_tensors[0].detach().requires_grad_()
                    Deep.apply(x, ctx.depth - 1).sum().backward()
            return gradient, None

    model = nn.Linear(3, 3)

    def step(x: torch.Tensor) -> dict[str, Any]:
        loss = Deep.apply(model(x), 80).sum()
        loss.backward()
        return {"loss": loss}

    session = _session(step, modules={"model": model})
    for _ in range(3):
        session.run(None, {"x": torch.ones(2, 3)}, _tap())
    assert session.faults == 0, f"{session.faults} ops were lost"


@hostile
def sessions_in_many_threads() -> None:
    """Each thread has a session of its own."""
    import torch
    from torch import nn

    def train() -> None:
        model = nn.Linear(3, 3)

        def step(x: torch.Tensor) -> dict[str, Any]:
            loss = model(x).relu().sum()
            loss.backward()
            return {"loss": loss}

        session = _session(step, modules={"model": model})
        for _ in range(30):
            session.run(None, {"x": torch.ones(2, 3)}, _watch("DebugNumericSummary", "DebugIdentity"))
        faults.append(session.faults)

    faults: list[int] = []
    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == [0] * 4


@hostile
def a_session_inside_an_op() -> None:
    """A custom op runs a session, again and again, while another one observes the op."""
    import torch

    from tensortap.seam.options import RunMetadata

    inner = _session(lambda x: {"y": (x * 2 + 1).sin().cos()})
    seen = []

    @torch.library.custom_op("sanitize::nest", mutates_args=(), schema="(Tensor x) -> Tensor")
    def nest(x: torch.Tensor) -> torch.Tensor:
        metadata = RunMetadata()
        result = inner.run(None, {"x": x}, _tap(), run_metadata=metadata)["y"]
        seen.append(len(metadata.nodes))
        return result.clone()

    outer = _session(lambda x: {"z": nest(x) + 1})
    for _ in range(4):
        outer.run(None, {"x": torch.ones(2)}, _tap())
    assert len(set(seen)) == 1, f"the inner runs had {seen} nodes"


@hostile
def a_script_with_a_loop() -> None:
    """TorchScript keeps other values below the arguments of an op on its stack."""
    import torch

    unit = torch.jit.CompilationUnit(
        "def f(x, w):\n    for i in range(3):\n        x = torch.mm(x, w) * 0.5\n    return x\n"
    )
    session = _session(lambda x: {"y": unit.f(x, x)})
    for _ in range(3):
        session.run(None, {"x": torch.randn(3, 3)}, _watch("DebugNumericSummary", "DebugIdentity"))
    assert session.faults == 0, f"{session.faults} ops were lost"


@hostile
def a_mode_of_the_user() -> None:
    """A mode of the user sees the ops of the program and no others."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops.append(str(op))
            return op(*args, **(kwargs or {}))

    def step(x: torch.Tensor) -> dict[str, Any]:
        with Log():
            return {"y": (x.t() * 2).t() + 1}

    ops: list[str] = []
    step(torch.randn(3, 4))
    expected, session = ops[:], _session(step)
    for options in (
        _watch("DebugNumericSummary", "DebugIdentity"),
        _tap(lambda node, slot, tensor: tensor.clone()),
    ):
        ops.clear()
        session.run(None, {"x": torch.randn(3, 4)}, options)
        assert ops == expected, ops


@hostile
def an_interrupt_in_our_own_code() -> None:
    """Ctrl-C arrives while Python is being asked something; it is meant for the program."""
    import torch

    def build(real: Any, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    def step(x: torch.Tensor) -> dict[str, Any]:
        for _ in range(10):
            x = x + 1
        return {"x": x}

    left = [1]
    try:
        with _answered_by("build", build):
            _session(step).run(None, {"x": torch.ones(2)}, _tap())
    except KeyboardInterrupt:
        return
    raise AssertionError("the interrupt was lost")


@hostile
def a_fork_that_returns_through_the_session() -> None:
    """The child goes on after the step, as the parent does."""
    import torch

    def step(x: torch.Tensor) -> dict[str, Any]:
        for _ in range(50):
            x = x + 1
        child = os.fork()
        return {"x": x * 2, "child": child}

    session = _session(step)
    for _ in range(5):
        child = session.run(None, {"x": torch.ones(3)}, _watch("DebugNumericSummary", "DebugIdentity"))[
            "child"
        ]
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


@hostile
def a_fork_while_records_are_handed_over() -> None:
    """The writer's thread is at it when the program forks; the child has no such thread and goes on."""
    import torch

    def take(real: Any, *args: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            time.sleep(1)
        real(*args)

    def step(x: torch.Tensor) -> dict[str, Any]:
        y = x + 1
        assert begun.wait(10), "records are not handed over by the writer"
        child = os.fork()
        return {"y": y * 2, "child": child}

    begun = threading.Event()
    with _answered_by("take", take):
        child = _session(step).run(None, {"x": torch.ones(3)}, _watch("DebugNumericSummary"))["child"]
    if child == 0:
        os._exit(0)
    for _ in range(100):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the child hangs")


if __name__ == "__main__":
    programs = {"kernel": kernel, "zoo": zoo, **HOSTILE}
    if sys.argv[1:] == ["list"]:
        print("\n".join(HOSTILE))
    else:
        programs[sys.argv[1]]()
