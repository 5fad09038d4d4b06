"""Compiled programs that stay compiled while they are watched: the same training, seen from inside."""

from __future__ import annotations

import importlib.metadata
import linecache
import logging
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers

import tensortap as tt
from tensortap.engines.torch import compiled
from tensortap.engines.torch.compiled.pill import pill
from tensortap.ops import kernel
from tensortap.ops.view import TensorView
from tensortap.sink.memory import collect
from tensortap.watch.match import watch_run

pytestmark = [
    pytest.mark.skipif(
        not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler"
    ),
    # Of PyTorch itself, while it compiles.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute of a Tensor"
    ),
]


@pytest.fixture(autouse=True)
def nothing_compiled_before(monkeypatch):
    # The compiler's trace, formatted for nobody but pytest, takes longer than compiling.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)


def graphs_compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.block = Block()
        self.head = nn.Linear(8, 10)

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)) * 0.5)


def tokens(run):
    return {"tokens": torch.randint(10, (2, 6), generator=torch.Generator().manual_seed(run))}


def session_of(model, step=None, **optimizers):
    optimizer = optimizers.setdefault("optimizer", torch.optim.AdamW(model.parameters(), lr=0.01))

    def train(tokens):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return tt.torch.Session(step or train, modules={"model": model}, optimizers=optimizers)


class Watched:
    """What was recorded of one watched run."""

    def __init__(self, session, feeds, *, debug_op="DebugNumericSummary", **lists):
        options, metadata = tt.RunOptions(), tt.RunMetadata()
        watch_run(options, tt.WatchOptions([debug_op], **lists), "memcbk:///seen")
        with collect("seen") as records:
            self.loss = float(session.run("loss", feeds, options, metadata))
        self.rows = {record.tensor_name: np.frombuffer(record.data) for record in records}
        self.nodes = {node.name: node for node in metadata.nodes}


def tapped_session(model, **compile_options):
    return session_of(torch.compile(model, backend=compiled.inductor, **compile_options))


def test_training_goes_on_as_if_nobody_had_looked(caplog):
    plain = session_of(torch.compile(Transformer(), backend="inductor"))
    expected = [float(plain.run("loss", tokens(run))) for run in range(5)]

    torch._dynamo.reset()
    torch.manual_seed(0)
    session = tapped_session(Transformer())
    losses, seen, graphs = [], [], []
    with caplog.at_level(logging.WARNING, "tensortap"):
        for run in range(5):
            if run in (1, 3):
                seen.append(Watched(session, tokens(run)))
                losses.append(seen[-1].loss)
            else:
                losses.append(float(session.run("loss", tokens(run))))
            graphs.append(graphs_compiled())
    # Equal where fusion permits; what the compiler fuses in another way may differ in the last bits.
    assert losses == pytest.approx(expected, rel=1e-6)
    assert losses[0] == expected[0]
    assert graphs == [2, 3, 3, 3, 3], "one graph for plain inductor, two here: without taps, and with them"
    assert caplog.text == ""
    assert session.faults == 0
    assert list(seen[0].nodes) == list(seen[1].nodes)
    assert seen[0].nodes["model/block/mlp/1/erf"] is seen[1].nodes["model/block/mlp/1/erf"]


def test_every_float_value_inside_has_a_record_under_the_name_of_its_place():
    seen = Watched(tapped_session(Transformer()), tokens(0))
    for node in seen.nodes.values():
        for slot, spec in enumerate(node.outputs):
            made_here = (
                node.inputs and not node.is_view and not node.name.rpartition("/")[2].startswith("copy_")
            )
            if made_here and spec.dtype.startswith("float"):
                assert node.tensor(slot) in seen.rows or slot, node  # later slots may never be computed
    for name, op_type in {
        "model/embedding/embedding": "aten::embedding",
        "model/block/norm/var_mean": "aten::var_mean",  # layer norm, taken apart by the compiler
        "model/block/mlp/1/erf": "aten::erf",  # inside GELU, fused: nobody sees it but here
        "model/mul": "aten::mul",  # in the compiled module itself
        "gradients/model/head/addmm/mm": "aten::mm",
        "gradients/model/head/weight": "AccumulateGrad",
        "optimizer/AdamW/model/head/weight/addcdiv_": "aten::addcdiv_",  # eager, as always
    }.items():
        assert seen.nodes[name].op_type == op_type
        assert f"{name}:0" in seen.rows

    add = seen.nodes["model/block/add"]
    assert linecache.getline(add.source.file, add.source.line).strip().startswith("x = x + F.scaled_dot")
    assert [frame.function for frame in add.stack][-3:] == ["session_of.<locals>.train", "forward", "forward"]
    gradient = seen.nodes["gradients/model/head/addmm/mm"]
    assert gradient.forward == "model/head/addmm"
    assert gradient.stack == seen.nodes["model/head/addmm"].stack
    assert seen.nodes["gradients/model/head/weight"].inputs[0].startswith("gradients/model/head/addmm/mm")


def test_values_are_close_to_those_of_an_eager_run():
    def mlp():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 10))

    eager = Watched(session_of(mlp()), tokens(0))
    compiled_rows = Watched(tapped_session(mlp()), tokens(0)).rows
    common = {
        "model/0/embedding:0",
        "model/1/addmm:0",
        "model/2/tanh:0",
        "model/3/addmm:0",
        "gradients/model/3/weight:0",
        "gradients/model/1/weight:0",
        "gradients/model/0/weight:0",
        "optimizer/AdamW/model/1/weight/addcdiv_:0",
    }
    assert common <= eager.rows.keys() & compiled_rows.keys()
    for name in eager.rows.keys() & compiled_rows.keys():
        assert compiled_rows[name] == pytest.approx(eager.rows[name], rel=1e-4, abs=1e-6, nan_ok=True), name


class Comparing:
    """A collector that compares summaries with the values a graph returns, before anybody uses these up."""

    def __init__(self):
        self.graphs, self.compared = [], 0

    def before(self, graph, inputs):
        return graph

    def after(self, graph, outputs, rows):
        self.graphs.append(graph)
        assert len(rows) == graph.tap_count
        for ref, output in zip(graph.outputs, outputs, strict=True):
            tap = (
                None if ref is None or ref.kind != "op" else dict(graph.ops[ref.position].taps).get(ref.slot)
            )
            if tap is not None:
                view = TensorView(output.data_ptr(), "float32", tuple(output.shape), output.stride(), output)
                assert rows[tap, : 14 + output.dim()].tolist() == kernel.summary(view).tolist()
                self.compared += 1


@contextmanager
def forced(backend):
    with torch.compiler.set_stance("default", force_backend=backend):
        yield


def test_a_summary_is_that_of_the_value_the_program_gets():
    model = torch.compile(Transformer(), backend=compiled.inductor)
    collector = Comparing()
    with forced(compiled.tapped), compiled.collecting(collector):
        model(tokens(0)["tokens"]).square().mean().backward()
    forward, backward = collector.graphs
    assert backward.forward is forward
    assert collector.compared >= 10, "what was saved for the backward pass, and the gradients of parameters"


def test_tapped_code_that_nobody_collects_from_gives_the_same_results():
    model = Transformer()
    compiled_model = torch.compile(model, backend=compiled.inductor)
    expected = compiled_model(tokens(0)["tokens"])
    with forced(compiled.tapped):
        assert torch.equal(compiled_model(tokens(0)["tokens"]), expected)


def test_where_a_value_inside_fused_code_turns_bad_is_found():
    class Unlucky(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            scaled = x * self.weight
            return (scaled - 1).log().clamp(min=0).sum()  # the sum is a fine number again

    def step(x):
        return {"loss": model(x)}

    model = torch.compile(Unlucky(), backend=compiled.inductor)
    session = tt.torch.Session(step, modules={"model": model})
    seen = Watched(session, {"x": torch.tensor([1.0, 2.0, 3.0, 4.0])})
    bad = [name for name, row in seen.rows.items() if row[2] or row[3] or row[7]]
    assert seen.loss == pytest.approx(np.log([1, 2, 3]).sum())
    assert bad == ["model/log:0"]


def test_gradients_go_to_the_call_they_belong_to():
    def step(x):
        first, second = model(x).mean(), model(x + 1).mean()
        first.backward()
        second.backward()
        return {"loss": first + second}

    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend=compiled.inductor)
    seen = Watched(tt.torch.Session(step, modules={"model": model}), {"x": torch.ones(2, 4)})
    assert seen.nodes["gradients/model/1/tanh/mul"].inputs == ("model/1/tanh:0",) * 2
    assert seen.nodes["gradients/model/1/tanh_1/mul"].inputs == ("model/1/tanh_1:0",) * 2
    assert seen.nodes["gradients/model/0/addmm_1/mm"].inputs[1] == "add:0", "the second input"


def test_equal_blocks_share_code_and_keep_their_own_names():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))

        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return x

    def step(x):
        loss = model(x).mean()
        loss.backward()
        return {"loss": loss}

    model = Stack()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend=compiled.inductor)
    session = tt.torch.Session(step, modules={"model": model})
    seen = Watched(session, {"x": torch.ones(2, 4)})
    assert graphs_compiled() == 1
    assert "model/first/addmm" in seen.nodes, "eager modules keep their scope too"
    for number in range(3):
        block = f"model/blocks/{number}"
        assert seen.nodes[f"{block}/0/addmm"].inputs[0] == f"{block}/0/bias:0"
        assert seen.nodes[f"gradients/{block}/1/tanh/mul"].inputs == (f"{block}/1/tanh:0",) * 2
        assert seen.nodes[f"gradients/{block}/0/weight"].inputs[0].startswith(f"gradients/{block}/0/addmm")


def test_a_compiled_optimizer_is_named_after_what_it_updates():
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        update()
        optimizer.zero_grad()
        return {"loss": loss}

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    update = torch.compile(lambda: optimizer.step(), backend=compiled.inductor)
    session = session_of(model, step, optimizer=optimizer)
    session.run(None, {"x": torch.ones(2, 4)})  # makes the state
    before = model.weight.detach().clone()
    seen = Watched(session, {"x": torch.ones(2, 4)})
    Watched(session, {"x": torch.ones(2, 4)})
    assert graphs_compiled() == 2, "without taps, and with them"
    written = seen.nodes["optimizer/SGD/model/weight/copy_"]
    assert written.inputs[0] == "model/weight:0"
    assert "optimizer/SGD/model/weight/momentum_buffer" in seen.nodes
    assert seen.rows["model/weight:0"][8] == before.min().item(), "as it was before the step"


@pytest.mark.parametrize("change", ["dynamic shapes", "graph break", "inference", "batch norm and dropout"])
def test_other_kinds_of_graphs(change):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4) if change.startswith("batch") else nn.Identity()

        def forward(self, x):
            x = self.linear(x).tanh()
            if change == "graph break":
                torch._dynamo.graph_break()
            return F.dropout(self.norm(x), 0.5, training=change.startswith("batch")).sum()

    def step(x):
        with torch.set_grad_enabled(change != "inference"):
            loss = model(x)
        if loss.requires_grad:
            loss.backward()
        return {"loss": loss}

    model = torch.compile(Model(), backend=compiled.inductor, dynamic=change == "dynamic shapes")
    session = tt.torch.Session(step, modules={"model": model})
    for rows in (2, 3, 4) if change == "dynamic shapes" else (2, 2):
        seen = Watched(session, {"x": torch.ones(rows, 4)})
        assert seen.rows["model/tanh:0"][14:].tolist() == [rows, 4]
        assert seen.rows["model/tanh:0"][1] == rows * 4
    assert graphs_compiled() == (2 if change == "graph break" else 1)
    assert session.faults == 0
    assert any(name.startswith("gradients/model/tanh/") for name in seen.nodes) == (change != "inference")


def test_a_run_that_wants_values_is_executed_eagerly(caplog):
    session = tapped_session(Transformer())
    with caplog.at_level(logging.WARNING, "tensortap"):
        seen = Watched(
            session, tokens(0), debug_op="DebugIdentity", node_name_regex_allowlist="model/head/addmm"
        )
    assert "model/head/addmm:0" in seen.rows
    assert "model/block/norm/native_layer_norm" in seen.nodes, "whole, as the program calls it"
    assert "Watched runs execute it eagerly" in caplog.text
    assert session.run("model/head/addmm:0", tokens(1)).shape == (12, 10)


def test_another_step_of_the_program_is_observed_natively_after_its_first_run(monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", "native")
    parts = {"eager": nn.Linear(4, 2), "compiled": torch.compile(nn.Linear(4, 2), backend=compiled.inductor)}
    modes = []

    def step(x, part):
        modes.append(torch._C._len_torch_dispatch_stack())
        return {"loss": parts[part](x).sum()}

    session = tt.torch.Session(step, modules=parts)
    for part in ("eager", "eager", "compiled", "compiled", "compiled"):
        seen = Watched(session, {"x": torch.ones(3, 4), "part": part})
        assert f"{part}/addmm:0" in seen.rows
    assert modes == [1, 0, 0, 1, 1], "no dispatch mode, once it is known to be of no use here"


def test_a_monitored_loop_is_seen_inside_too():
    model = torch.compile(nn.Linear(4, 2), backend=compiled.inductor)
    options = tt.RunOptions()
    watch_run(options, tt.WatchOptions(["DebugNumericSummary"]), "memcbk:///seen")
    with tt.torch.monitor(model) as m, collect("seen") as records, m.run(options=options):
        model(torch.ones(3, 4)).sum().backward()
    assert {"model/addmm:0", "gradients/model/addmm/mm:0"} <= {record.tensor_name for record in records}


def test_nothing_stays_installed():
    hooks = (
        torch_modules._global_forward_pre_hooks,
        torch_modules._global_forward_hooks,
        torch_modules._global_forward_hooks_always_called,
        torch_optimizers._global_optimizer_pre_hooks,
        torch_optimizers._global_optimizer_post_hooks,
    )
    before = [dict(each) for each in hooks]
    model = torch.compile(nn.Linear(4, 2), backend=compiled.inductor)

    def step(x):
        raise ValueError(model(x).shape)

    with pytest.raises(ValueError, match="3, 2"):
        Watched(tt.torch.Session(step, modules={"model": model}), {"x": torch.ones(3, 4)})
    assert [dict(each) for each in hooks] == before
    assert torch._dynamo.eval_frame._stance.backend is None
    assert compiled.collector.current() is None


def test_our_own_faults_cost_records_and_nothing_else(monkeypatch, caplog):
    def fail(*args):
        raise OSError("out of ideas")

    session = tapped_session(Transformer())
    expected = float(session.run("loss", tokens(0)))

    torch.manual_seed(0)
    for where in ("_begin", "_finish"):
        torch.manual_seed(0)
        broken = tapped_session(Transformer())
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "tensortap"):
            patch.setattr(compiled.GraphTaps, where, fail)
            seen = Watched(broken, tokens(0))
        assert seen.loss == pytest.approx(expected, rel=1e-6)
        assert broken.faults >= 2
    assert "out of ideas" in caplog.text


def test_a_graph_that_cannot_be_tapped_runs_without(monkeypatch, caplog):
    def fail(graph):
        insert_taps(graph)
        raise OSError("cannot")

    insert_taps = compiled.backend.TappedGraph.insert_taps
    monkeypatch.setattr(compiled.backend.TappedGraph, "insert_taps", fail)
    model = torch.compile(nn.Linear(4, 2), backend=compiled.inductor)

    def step(x):
        loss = model(x).sum()
        loss.backward()
        return {"loss": loss}

    with caplog.at_level(logging.WARNING, "tensortap"):
        seen = Watched(tt.torch.Session(step, modules={"model": model}), {"x": torch.ones(3, 4)})
    assert "could not tap" in caplog.text
    assert "gradients/model/weight:0" in seen.rows, "what is outside the graph is seen all the same"


def test_caches_do_not_mix_up_the_two_versions():
    def train(watched):
        torch._dynamo.reset()
        torch.manual_seed(0)
        session = tapped_session(nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10)))
        if not watched:
            return float(session.run("loss", tokens(0)))
        return Watched(session, tokens(0)).rows.keys()

    loss, names = train(watched=False), train(watched=True)
    assert {"model/1/addmm:0", "gradients/model/1/addmm/mm:0"} <= names
    assert train(watched=False) == loss
    assert train(watched=True) == names


@pytest.mark.parametrize("how", [{"mode": "max-autotune-no-cudagraphs"}, {"options": {"max_fusion_size": 8}}])
def test_modes_and_options_of_inductor_are_passed_on(how):
    model = nn.Linear(4, 2)
    x = torch.ones(3, 4)
    torch.testing.assert_close(torch.compile(model, backend=compiled.inductor, **how)(x), model(x))
    with pytest.raises(Exception, match="no_such_option"):
        torch.compile(model, backend=compiled.inductor, options={"no_such_option": 1})(x)


def test_the_operator_takes_any_layout_and_any_float():
    values = torch.randn(4, 6)
    values[1, 2] = float("nan")
    for tensor in (values, values.t(), values[:, ::2], values.bfloat16(), values.double(), torch.empty(0)):
        expected = kernel.summary(
            tensor.float().numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()
        )
        row = pill(tensor)[: 14 + tensor.dim()].numpy()
        assert row[[0, 1, 2, 8, 9, 13]] == pytest.approx(expected[[0, 1, 2, 8, 9, 13]], nan_ok=True)
    torch.library.opcheck(pill, (values,))


def test_torch_compile_finds_the_backend_by_name():
    entry_points = importlib.metadata.entry_points(group="torch_dynamo_backends", name="tensortap")
    if not entry_points:
        pytest.skip("tensortap was installed before it had the entry point")
    assert entry_points["tensortap"].load() is compiled.inductor
