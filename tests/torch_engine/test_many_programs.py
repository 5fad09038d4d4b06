"""Many programs in one process, as a test suite has them: what was learned of one is let go when it is over."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.engines.session.block import Monitor
from tensortap.engines.torch import forgetting
from tensortap.engines.torch.loop import TorchBlockSession
from tensortap.engines.torch.observer.decoder import Decoder
from tensortap.engines.torch.observer.nodes import Nodes
from tensortap.engines.torch.program import Program
from tensortap.reader import SessionDir
from tensortap.records import Node, TensorSpec
from tensortap.seam.graph import Graph
from tensortap.sink.queue import shared_queue
from tests.patience import patient
from tests.torch_engine.test_repeating import counted

INTERCEPTORS = ["native", "dispatch"]


class Tiny(nn.Module):
    """A model of two layers, called as no other model's are."""

    def __init__(self, number):
        super().__init__()
        self.parts = [f"part_{number}_{each}" for each in range(2)]
        for part in self.parts:
            self.add_module(part, nn.Linear(3, 3))

    def forward(self, x):
        for part in self.parts:
            x = self.get_submodule(part)(x).tanh()
        return x


class Programs:
    """Programs one after the other in one session, which has no use for more than a few hundred names."""

    def __init__(self, root, interceptor, most_names=400):
        self.program = Program({}, {})
        self.session = TorchBlockSession(self.program, 0, interceptor)
        self.session.forgetting = forgetting.Forgetting(most_names)
        watch = tt.WatchOptions(["DebugNumericSummary"], keep_bad=8)
        hook = tt.DumpingDebugHook(root, watch_fn=lambda fetches, feeds: watch)
        self.monitor = Monitor(self.session, [hook], 1.0)
        self.runs = []

    def execute(self, number):
        model = Tiny(number)
        self.train(model, torch.optim.Adam(model.parameters()))
        return weakref.ref(model)

    def train(self, model, optimizer):
        self.program.modules = {"model": model}
        for _ in range(2):
            run = tt.RunMetadata()
            with self.monitor.run(run_metadata=run):
                loss = model(torch.ones(2, 3)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            self.runs.append([node.name for node in run.nodes])


@pytest.fixture(params=INTERCEPTORS)
def programs(request, tmp_path):
    made = Programs(tmp_path, request.param)
    with made.monitor:
        yield made


def living(kind):
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is kind]


def known_nodes():
    """The nodes of the observers, which the garbage collector does not know, and all others."""
    return sum(len(each) for each in living(Nodes)) + len(living(Node))


def test_what_will_not_come_back_is_let_go(programs):
    for number in range(4):
        programs.execute(number)
    sizes = []
    decoders, nodes = len(living(Decoder)), known_nodes()
    for number in range(4, 60):
        gone = programs.execute(number)
        sizes.append(len(programs.session.graph))
    assert max(sizes) < 1000  # 60 programs have 5,000 names
    gc.collect()
    programs.program.modules = {}
    assert gone() is None
    assert len(living(Decoder)) <= decoders
    assert known_nodes() < nodes + 3000


def test_names_are_the_same_whatever_was_there_before(programs):
    programs.execute(0)
    first = programs.runs[-2:]
    for number in range(1, 20):
        programs.execute(number)
    gc.collect()  # an optimizer that is still there has the name
    programs.execute(0)
    assert programs.runs[-2:] == first


def test_programs_that_come_back_are_kept(tmp_path, monkeypatch):
    built = counted(monkeypatch, "build", "build_alike")
    programs = Programs(tmp_path, "native", most_names=1)
    models = [Tiny(number) for number in range(7)]
    trained = [(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]
    with programs.monitor:
        for _ in range(8):
            built.clear()
            for model, optimizer in trained:
                programs.train(model, optimizer)
    assert len(programs.session.graph) > 200  # more than a few runs have
    assert not built


def test_bad_values_are_known_by_the_run_that_made_them_after_all_else_is_forgotten(tmp_path, monkeypatch):
    # Of a program that has loaded our backend of torch.compile, the first run is observed by the dispatch mode.
    monkeypatch.delitem(sys.modules, "tensortap.engines.torch.compiled", raising=False)
    programs = Programs(tmp_path, "native", most_names=150)
    with programs.monitor:
        with programs.monitor.run():
            kept = torch.zeros(3).log() - torch.zeros(3).log()
        for number in range(10):
            programs.execute(number)
        with programs.monitor.run():
            (kept + 1).sum()
    assert shared_queue().drain(patient(30))
    last = max(SessionDir(tmp_path), key=lambda run: run.index)
    found = last.open(validate=False)
    assert [(run, name) for run, name in found.source.circumstances.came_from.values()] == [(0, "sub:0")]


def test_nodes_that_come_in_turns_are_settled_once():
    graph = Graph()

    def node(inputs, rows):
        return Node("x", "aten::add", inputs, outputs=(TensorSpec("float32", (rows, 4)),))

    one, other = node(("a:0",), 2), node(("b:0",), 3)
    for each in (one, other, one, other):
        graph.record([each])
    settled = []
    for each in (one, other, one, other):
        graph.record([each])
        settled += graph.settled([each])
    assert [each.inputs for each in settled] == [("a:0",), ("b:0",)] * 2
    assert {each.outputs[0].shape for each in settled} == {(None, 4)}
    assert settled[0] is settled[2]
    assert settled[1] is settled[3]


def test_a_graph_that_forgets_keeps_what_hooks_derived():
    graph = Graph()
    graph.add_derived("norm", abs, ["x:0"])
    graph.record([Node("x", "aten::add"), Node("y", "aten::mul")])
    version = graph.version
    graph.forget()
    assert [node.name for node in graph.nodes] == ["norm"]
    assert graph.version != version
