"""Programs that repeat themselves are recognised, and what changes in them is noticed all the same."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules import module as module_hooks

from tensortap.engines.torch.follow import follow
from tensortap.engines.torch.observer.answers import Answers
from tensortap.engines.torch.observer.known import KnownSources
from tensortap.engines.torch.observer.nodes import Nodes
from tensortap.engines.torch.observer.sources import NativeSources
from tensortap.launch.watch import ScriptOptions, ScriptWatch
from tensortap.reader import SessionDir
from tensortap.watch.options import WatchOptions
from tests.torch_engine.subclasses.kinds import Asked, Wrapper


@pytest.fixture
def following(tmp_path, monkeypatch):
    """A program that is followed: `with` it, and afterwards `runs` has the names of each run's nodes."""
    # A program that has loaded our backend of torch.compile is followed by its optimizers only.
    monkeypatch.delitem(sys.modules, "tensortap.engines.torch.compiled", raising=False)

    class Following:
        def __enter__(self):
            options = ScriptOptions(
                tmp_path / "dumps", WatchOptions("DebugNumericSummary"), keep="all", interceptor="native"
            )
            self._watch = ScriptWatch(options)
            self._follower = follow(self._watch)
            return self

        def __exit__(self, *error):
            self._follower.end()
            self._watch.close()
            dumps = [run.open(validate=False) for run in SessionDir(tmp_path / "dumps")]
            self.runs = [set(dump.nodes()) for dump in dumps if dump.nodes()]
            self.health = [
                {datum.node_name: datum.get_tensor() for datum in dump.dumped_tensor_data}
                for dump in dumps
                if dump.nodes()
            ]

    return Following()


class Net(nn.Module):
    """Two layers, the second of which may be replaced, and a buffer that is made anew in every call."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        x = self.second(self.first(x))
        self.average = self.average * 0.9 + x.detach().mean(0) * 0.1
        return (x - self.average).square().mean()


def step(model, optimizer, x=None):
    loss = model(torch.ones(2, 3) if x is None else x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def counted(monkeypatch, *questions):
    """Lists the questions that the observer asks about nodes from now on."""
    asked = []
    for each in questions:
        answer = getattr(Nodes, each)
        monkeypatch.setattr(
            Nodes, each, lambda self, *given, answer=answer: (asked.append(1), answer(self, *given))[1]
        )
    return asked


@pytest.fixture
def named_again(monkeypatch):
    """For every run, whether all that was there before it was known from the last one."""
    answers = []
    name_again = KnownSources.name_again

    def note_answer(self, *given):
        answers.append(name_again(self, *given))
        return answers[-1]

    monkeypatch.setattr(KnownSources, "name_again", note_answer)
    return answers


def test_what_is_outside_of_a_run_is_named_once(following, named_again):
    with following:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(8):
            step(model, optimizer)
    assert len(named_again) > 6
    assert all(named_again[3:])
    for run in following.runs[1:8]:
        assert {"model/first/weight", "model/average", "gradients/model/second/bias"} <= run
        assert "optimizer/Adam/model/first/weight/exp_avg" in run
    assert following.runs[4] == following.runs[7]


def test_changes_of_a_program_are_known_to_the_run_that_begins_after_them(following):
    def two_steps(*x):
        for _ in range(2):  # the first of them began with the step before
            step(model, optimizer, *x)

    with following:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        two_steps()
        model.second = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4))
        optimizer.add_param_group({"params": list(model.second.parameters())})
        two_steps()
        model.first.weight.requires_grad_(False)
        model.first.weight.grad = None
        two_steps()
        model.first.weight.requires_grad_(True)
        model.first.weight.data = torch.ones(4, 6)
        two_steps(torch.ones(2, 6))
        model.first._parameters["bias"] = nn.Parameter(torch.zeros(4))
        two_steps(torch.ones(2, 6))
    before, replaced, frozen, thawed, put = following.runs[1:10:2]
    assert "gradients/model/second/weight" in before
    assert {"model/second/1/weight", "gradients/model/second/0/weight"} <= replaced
    assert "gradients/model/first/weight" in replaced
    assert "gradients/model/first/weight" not in frozen
    assert "gradients/model/first/weight" in thawed
    assert {"model/first/bias", "gradients/model/first/bias"} <= put


def test_models_that_take_turns_are_named_once(following, named_again):
    with following:
        generator, critic = nn.Linear(3, 3), Net()
        optimizers = [torch.optim.Adam(each.parameters()) for each in (critic, generator)]
        for _ in range(8):
            for optimizer in optimizers:  # clears the gradients of one model, and makes those of both
                optimizer.zero_grad()
                critic(generator(torch.ones(2, 3))).backward()
                optimizer.step()
    assert len(named_again) > 12
    assert all(named_again[8:])
    for run in following.runs[8:12]:
        assert "gradients/critic/first/weight" in run


def test_parameters_that_autograd_never_heard_of(following, caplog):
    net = Net()
    net.first.weight = nn.Parameter(torch.ones(4, 3), requires_grad=False)
    optimizer = torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=0.1)
    with following:
        for _ in range(3):
            net(torch.ones(2, 3)).backward()
            optimizer.step()
    assert not caplog.records
    assert {"net/first/weight", "net/first/addmm"} <= following.runs[-1]


def test_hooks_stay_between_runs_and_are_gone_at_the_end(following):
    with following:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer)
        assert model.first.weight._post_accumulate_grad_hooks
    assert model.first.weight._post_accumulate_grad_hooks is None
    assert not module_hooks._global_forward_pre_hooks
    assert not module_hooks._global_forward_hooks


def test_what_is_remembered_keeps_nothing_alive(following):
    with following:
        for _ in range(3):
            model = Net()
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(3):
                step(model, optimizer)
            gone = [weakref.ref(model), weakref.ref(model.first.weight)]
        other = Net()
        del model, optimizer
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(2):
            step(other, optimizer)
        gc.collect()
        assert [each() for each in gone] == [None, None]


def test_a_run_leaves_nothing_to_the_garbage_collector(tmp_path, monkeypatch):
    """All that a run needed goes when it does: Python need not look for it more often than the program makes it."""
    monkeypatch.delitem(sys.modules, "tensortap.engines.torch.compiled", raising=False)
    options = ScriptOptions(
        tmp_path / "dumps", WatchOptions("DebugNumericSummary"), keep="none", last=5, interceptor="native"
    )
    watch = ScriptWatch(options)
    follower = follow(watch)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def steps(number):
        for _ in range(number):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()

    try:
        steps(20)  # by then runs are forgotten as fast as they come
        gc.collect()
        gc.disable()
        steps(50)
        found = gc.collect()
    finally:
        gc.enable()
        follower.end()
        watch.close()
    assert watch.seen.runs == 70
    assert found < 50  # what other threads do now and then


def test_sentences_of_any_length_are_recognised(following, monkeypatch):
    built = counted(monkeypatch, "build", "build_alike")
    counts = []
    with following:
        model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for length in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12):
            before = len(built)
            model(torch.zeros(2, length, dtype=torch.long)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            counts.append(len(built) - before)
    assert counts[0] > 5
    assert counts[6:] == [0, 0, 0, 0]


def test_constants_and_gradients_of_any_shape_are_recognised(following, monkeypatch):
    decoded = counted(monkeypatch, "build", "build_alike", "constant", "gradient")
    counts = []
    with following:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(torch.ones(objects, 4), torch.ones(objects, 2)) for objects in range(3, 23)]
        for x, target in batches:  # made before the run, so known to nobody
            decoded.clear()
            (model(x) - target).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            counts.append(len(decoded))
    assert counts[0] > 5
    assert counts[10:] == [0] * 10


class Changing(nn.Module):
    """Its buffer is of another class in every call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("average", torch.zeros(3))
        self.classes = iter([Wrapper, lambda x: x.as_subclass(Asked), lambda x: x] * 3)

    def forward(self, x):
        average = self.average
        x = self.layer(x) + (average.elem if isinstance(average, Wrapper) else average)
        self.average = next(self.classes)(x.detach().mean(0))
        return x.square().mean()


def test_what_a_tensor_of_another_class_is_known_by_is_asked_in_every_run(following):
    with following:
        model = Changing()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(9):
            step(model, optimizer)
    assert all("model/average" in run for run in following.runs[:9])
    assert following.runs[8] == following.runs[5] == following.runs[2]


@pytest.fixture
def mesh():
    """One rank, alone in its job."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_shards_are_named_once(following, mesh, monkeypatch, named_again):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    asked = []
    tensor_class = Answers.tensor_class
    monkeypatch.setattr(
        Answers, "tensor_class", lambda self, each: (asked.append(type(each)), tensor_class(self, each))[1]
    )
    for owner, name in (
        *((NativeSources, "name_of"), (NativeSources, "add_source")),
        (Answers, "in_place_of"),
    ):
        method = getattr(owner, name)
        monkeypatch.setattr(
            owner,
            name,
            lambda self, *given, method=method: (asked.append("shard"), method(self, *given))[1],
        )
    with following:
        model = Net()
        parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(6):
            step(model, optimizer)
        settled = len(asked)
        for _ in range(4):
            step(model, optimizer)
    assert len(named_again) > 8
    assert all(named_again[4:])
    assert len(asked) - settled <= 4 * 2, "only what the step is given is new"
    for run in following.runs[1:8]:
        assert {"model/first/weight", "model/average", "gradients/model/second/bias"} <= run
        assert "optimizer/Adam/model/first/weight/exp_avg" in run
    assert following.runs[5] == following.runs[8]


def fill_unseen(tensor, number):
    """Write a tensor in a way that PyTorch does not hear of."""
    (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())[:] = [number] * tensor.numel()


def train_with_memory_that_goes(following, use):
    """Train with a tensor whose memory is freed before every update, and is new and full of NaN after it."""
    with following:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        whole = torch.ones(6)
        for _ in range(5):
            whole.untyped_storage().resize_(24)
            fill_unseen(whole, float("nan"))
            loss = model(use(whole))
            loss.backward()
            whole.untyped_storage().resize_(0)
            optimizer.step()
            optimizer.zero_grad()


def test_memory_that_comes_back_is_not_looked_at_before_it_is_written(following):
    def gather(whole):
        rows = whole.view(2, 3)
        return torch.add(torch.zeros(2, 3), 1, out=rows)

    train_with_memory_that_goes(following, gather)
    assert any("add" in run for run in following.health[2:])
    for run in following.health[2:]:  # what happens before memory is seen to go is not known to be garbage
        assert [name for name, pill in run.items() if pill[2]] == []


def test_memory_that_comes_back_is_looked_at_by_who_computes_with_it(following):
    def load(whole):
        whole.view(2, 3)
        fill_unseen(whole, float("inf"))
        return whole.clamp(max=1).view(2, 3)

    train_with_memory_that_goes(following, load)
    for run in following.health[2:4]:
        assert run["view/const"][7] == 6
        assert run["clamp"][7] == 0


def test_a_loop_that_grows_from_run_to_run_is_not_decoded_again(following, monkeypatch, tmp_path):
    """Its last ops take their inputs from other places in every run, and are else what they were."""
    built = counted(monkeypatch, "build", "build_alike")
    counts = []
    with following:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        history = [torch.ones(2, 1) for _ in range(12)]
        for number in range(8):
            loss = model(torch.ones(2, 3))
            for _ in range(number):
                loss = loss.mul(1.0)
            for each in history:
                loss = loss.sub(each).neg()
            loss.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            counts.append(len(built))
    # What is new is a product and its gradient, and the first of the differences finds another minuend.
    assert [after - before for before, after in pairwise(counts[3:])] == [2] * 4
    dumps = [run.open(validate=False) for run in SessionDir(tmp_path / "dumps")]
    inputs = [dump.node_inputs("sub")[0] for dump in dumps if "sub" in dump.nodes()]
    assert inputs == ["model/addmm", "mul", *(f"mul_{number}" for number in range(1, 7))]
