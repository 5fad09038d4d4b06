"""Two interceptors, one graph: what both see of every program, and which of them observes a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import tensortap as tt
from tensortap.errors import InvalidArgumentError
from tests.torch_engine.zoo import ZOO

# Autograd executes something else under the dispatch mode than when nobody looks: it adds and scatters out of place,
# and asks its inputs for zeros and views. In these programs, and only in their gradients.
OTHER_GRADIENTS = {
    *("bool_int_ops", "complex_fft", "dict_batch", "double_backward", "embedding_sparse_free"),
    *("empty_and_scalar", "inplace_ops", "lstm_cell_loop", "multi_output", "nested_no_grad_eval", "nn_lstm"),
    *("lists_of_tensors", "transformer_explicit", "transformer_sdpa"),
}
# The dispatch mode sees `t` before vmap takes it apart, in the forward pass too.
TRANSFORMED = {"vmap_grad"}
# The dispatch mode takes a conditional for one op; the native interceptor sees what it executes.
HIGHER_ORDER = {"higher_order_cond"}

ALLOWED_PAIRS = {
    ("aten::add", "aten::add_"),
    ("aten::index_add", "aten::index_add_"),
    ("aten::index_put", "aten::_index_put_impl_"),
    ("aten::masked_scatter", "aten::masked_scatter_"),
    ("aten::new_zeros", "aten::zeros"),
    ("aten::scatter", "aten::scatter_"),
    ("aten::scatter_add", "aten::scatter_add_"),
    ("aten::view", "aten::_reshape_alias"),
}
VMAP_PAIRS = {("aten::t", "aten::transpose")}
# An argument that follows the shape of its inputs, which changes from run to run: the native interceptor calls it
# varying when it changes for the second time, the dispatch mode gives its value.
CHANGING_SHAPES = {"bool_int_ops"}
VARIES = "(varies)"


def graphs_of(name, interceptor, runs=3):
    """The nodes of the first runs of a program."""
    case = ZOO[name]()
    session = tt.torch.Session(
        case.step, modules=case.modules, optimizers=case.optimizers, interceptor=interceptor
    )
    graphs = []
    for run in range(runs):
        metadata = tt.RunMetadata()
        session.run(None, case.batch(run), tt.RunOptions(output_partition_graphs=True), metadata)
        graphs.append(list(metadata.nodes))
    assert session.faults == 0
    return graphs


def renamed(node, names):
    """A node with other names for itself and everything it refers to."""

    def tensor(name):
        owner, _, slot = name.rpartition(":")
        return f"{names[owner]}:{slot}"

    return replace(
        node,
        name=names[node.name],
        inputs=tuple(map(tensor, node.inputs)),
        control_inputs=tuple(names[each] for each in node.control_inputs),
        forward=names.get(node.forward, node.forward),
    )


def without_copies_of_conjugates(nodes):
    """The dispatch mode copies a conjugated view in front of an op that cannot read one."""
    views = {node.tensor(0) for node in nodes if node.op_type == "aten::_conj"}
    copies = {
        node.tensor(0): node.inputs[0]
        for node in nodes
        if node.op_type == "aten::clone" and node.inputs[0] in views
    }
    return [
        replace(node, inputs=tuple(copies.get(name, name) for name in node.inputs))
        for node in nodes
        if node.tensor(0) not in copies
    ]


def with_varying_arguments(node, other):
    """A node that says of the same arguments as the other one that they vary."""
    varying = {key for key, value in other.attributes.items() if value == VARIES}
    return replace(
        node, attributes={key: VARIES if key in varying else value for key, value in node.attributes.items()}
    )


def assert_alike(dispatch, native, pairs, may_differ):
    """The same nodes in the same order, but for the listed pairs of op types."""
    dispatch = without_copies_of_conjugates(dispatch)
    assert len(native) == len(dispatch)
    names = {theirs.name: ours.name for ours, theirs in zip(dispatch, native, strict=True)}
    for ours, theirs in zip(dispatch, native, strict=True):
        if ours.op_type == theirs.op_type:
            assert renamed(theirs, names) == ours
        else:
            assert may_differ(theirs.name), theirs
            assert (ours.op_type, theirs.op_type) in pairs
            alike = replace(
                ours,
                op_type=theirs.op_type,
                attributes=theirs.attributes,
                is_view=theirs.is_view,
                writes=theirs.writes,
                inputs=() if theirs.op_type == "aten::zeros" else ours.inputs,  # need no tensor to be like
            )
            assert renamed(theirs, names) == alike
        if not may_differ(theirs.name):
            assert theirs.name == ours.name


@pytest.mark.parametrize("name", sorted(set(ZOO) - OTHER_GRADIENTS - TRANSFORMED - HIGHER_ORDER))
def test_both_see_the_same_graph(name):
    for run, (dispatch, native) in enumerate(
        zip(graphs_of(name, "dispatch"), graphs_of(name, "native"), strict=True)
    ):
        assert [node.name for node in native] == [node.name for node in dispatch]
        for ours, theirs in zip(dispatch, native, strict=True):
            # Of a call whose inputs come from elsewhere each time, the native one tells sooner what varies.
            assert theirs == with_varying_arguments(ours, theirs), run


@pytest.mark.parametrize("name", sorted(OTHER_GRADIENTS))
def test_both_see_the_same_graph_but_for_what_autograd_does_otherwise(name):
    differ = False
    for dispatch, native in zip(graphs_of(name, "dispatch"), graphs_of(name, "native"), strict=True):
        if name in CHANGING_SHAPES:
            dispatch = list(map(with_varying_arguments, dispatch, native))
        assert_alike(dispatch, native, ALLOWED_PAIRS, lambda node: node.startswith("gradients/"))
        own = [
            [node for node in each if not node.name.startswith("gradients/")] for each in (dispatch, native)
        ]
        assert own[0] == own[1]
        differ = differ or dispatch != native
    assert differ, "the same now: compare it exactly"


@pytest.mark.parametrize("name", sorted(TRANSFORMED))
def test_both_see_the_same_graph_below_transforms(name):
    for dispatch, native in zip(graphs_of(name, "dispatch"), graphs_of(name, "native"), strict=True):
        assert_alike(dispatch, native, VMAP_PAIRS, lambda node: "/t" in node)


@pytest.mark.parametrize("name", sorted(HIGHER_ORDER))
def test_both_see_the_same_graph_around_a_conditional(name):
    for dispatch, native in zip(graphs_of(name, "dispatch"), graphs_of(name, "native"), strict=True):
        assert {node.op_type for node in native} >= {"aten::mul", "aten::sin"} or {
            node.op_type for node in native
        } >= {"aten::add", "aten::tanh"}
        shared = {node.name for node in dispatch} & {node.name for node in native}
        assert {node.name for node in dispatch} - shared == {"cond", "gradients/cond/cond"}
        around = [[node for node in each if node.name in shared] for each in (dispatch, native)]
        for ours, theirs in zip(*around, strict=True):
            assert replace(theirs, inputs=ours.inputs) == ours
            for mine, other in zip(ours.inputs, theirs.inputs, strict=True):
                assert mine == other or mine in ("cond:0", "gradients/cond/cond:0")


# Which one observes a run


def in_use():
    """The interceptor that observes the code that asks."""
    return "dispatch" if _get_current_dispatch_mode_stack() else "native"


def asking_session(**options):
    def step(x):
        return {"y": x * 2, "by": in_use()}

    return tt.torch.Session(step, **options)


WATCH = tt.RunOptions(taps=[lambda node, slot, tensor: None])
X = {"x": torch.ones(2)}


@pytest.mark.parametrize("choice", ["native", "dispatch"])
def test_a_session_may_be_told(choice, monkeypatch):
    monkeypatch.delenv("TENSORTAP_INTERCEPTOR", raising=False)
    assert asking_session(interceptor=choice).run(None, X, WATCH)["by"] == choice


@pytest.mark.parametrize("choice", ["native", "dispatch"])
def test_the_environment_may_say(choice, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", choice)
    assert asking_session().run(None, X, WATCH)["by"] == choice


def test_auto_is_the_default_and_means_the_native_one_where_it_can_be_had(monkeypatch):
    monkeypatch.delenv("TENSORTAP_INTERCEPTOR", raising=False)
    assert asking_session().run(None, X, WATCH)["by"] == "native"
    assert asking_session(interceptor="auto").run(None, X, WATCH)["by"] == "native"
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", "auto")
    assert asking_session().run(None, X, WATCH)["by"] == "native"


@pytest.mark.parametrize(("argument", "variable"), [("native", "dispatch"), ("dispatch", "native")])
def test_the_argument_beats_the_variable(argument, variable, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", variable)
    assert asking_session(interceptor=argument).run(None, X, WATCH)["by"] == argument
    with tt.torch.monitor(nn.Linear(1, 1), interceptor=argument) as m:
        with m.run(options=WATCH):
            assert in_use() == argument


@pytest.mark.parametrize("choice", ["native", "dispatch"])
def test_a_monitored_loop_may_be_told(choice, monkeypatch):
    monkeypatch.delenv("TENSORTAP_INTERCEPTOR", raising=False)
    model = nn.Linear(2, 1)
    names = []
    options = tt.RunOptions(taps=[lambda node, slot, tensor: names.append(node.tensor(slot))])
    with tt.torch.monitor(model, interceptor=choice) as m:
        with m.run(options=options):
            model(torch.ones(1, 2)).sum().backward()
            assert in_use() == choice
    assert {"model/addmm:0", "gradients/model/weight:0"} <= set(names)


def test_a_choice_that_does_not_exist_is_an_error_that_suggests(monkeypatch):
    with pytest.raises(
        InvalidArgumentError, match=r"interceptor='nativ'.*auto, native, dispatch.*native"
    ) as caught:
        asking_session(interceptor="nativ")
    assert "Did you mean" in str(caught.value) or str(caught.value).rstrip("?.'").endswith("native")
    with pytest.raises(InvalidArgumentError, match="interceptor='dispach'"):
        tt.torch.monitor(nn.Linear(1, 1), interceptor="dispach")
    with pytest.raises(InvalidArgumentError, match="interceptor=''"):
        asking_session(interceptor="")
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", "dispath")
    with pytest.raises(InvalidArgumentError, match="TENSORTAP_INTERCEPTOR='dispath'"):
        asking_session()
    assert asking_session(interceptor="dispatch").run(None, X, WATCH)["by"] == "dispatch"


def test_an_unwatched_run_needs_neither():
    session = asking_session(interceptor="dispatch")
    assert session.run(None, X)["by"] == "native"  # no mode is installed: nobody looks


@pytest.mark.parametrize(
    ("feeds", "timeout"),
    [({"model/0/addmm:0": torch.zeros(8, 8)}, 0), ({}, 60_000)],
    ids=["fed", "limited in time"],
)
def test_runs_that_must_be_interfered_with_use_the_dispatch_mode_and_the_same_names(feeds, timeout):
    case = ZOO["adamw_forloop"]()

    def step(x, y):
        return {**case.step(x, y), "by": in_use()}

    session = tt.torch.Session(step, modules=case.modules, optimizers=case.optimizers, interceptor="native")

    def run(number, feeds=(), timeout=0):
        metadata = tt.RunMetadata()
        options = tt.RunOptions(output_partition_graphs=True, timeout_in_ms=timeout)
        result = session.run(None, {**case.batch(number), **dict(feeds)}, options, metadata)
        return result["by"], metadata.nodes

    run(0)
    by, watched = run(1)
    assert by == "native"
    by, interfered = run(2, feeds, timeout)
    assert by == "dispatch"
    by, after = run(3)
    assert by == "native"
    names = [node.name for node in watched]
    assert [node.name for node in after] == names
    if feeds:  # nothing flows back through a fed tensor, and what was put in front of it has no gradient
        assert {node.name for node in interfered if not node.name.startswith("gradients/")} <= set(names)
    else:
        assert [node.name for node in interfered] == names


def test_fetching_from_the_middle_gives_the_same_value_with_both():
    values = {}
    for choice in ("native", "dispatch"):
        case = ZOO["sgd_momentum"]()
        session = tt.torch.Session(
            case.step, modules=case.modules, optimizers=case.optimizers, interceptor=choice
        )
        fetches = ["model/0/addmm:0", "gradients/model/2/weight:0", "loss"]
        values[choice] = [session.run(fetches, case.batch(run)) for run in range(2)]
    for native, dispatch in zip(values["native"], values["dispatch"], strict=True):
        for ours, theirs in zip(native, dispatch, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes()


# Where the native one cannot be had

FALL_BACK = textwrap.dedent("""
    import logging, sys, torch, tensortap as tt
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
    logging.basicConfig(format="%(levelname)s %(message)s")
    watch = tt.RunOptions(taps=[lambda node, slot, tensor: None])
    for choice in sys.argv[1:]:
        choice = None if choice == "-" else choice
        for _ in range(2):
            session = tt.torch.Session(
                lambda x: {"y": x + 1, "mode": bool(_get_current_dispatch_mode_stack())}, interceptor=choice
            )
            for _ in range(2):
                try:
                    print(choice, session.run(None, {"x": torch.ones(1)}, watch)["mode"])
                except tt.errors.NativeBuildError as error:
                    print(choice, type(error).__name__, error.reason, "|", error.fix)
""")


def without_a_compiler(tmp_path, *choices, **environment):
    kept = {key: value for key, value in os.environ.items() if key not in ("CXX", "TENSORTAP_INTERCEPTOR")}
    (tmp_path / "bin").mkdir()
    return subprocess.run(
        [sys.executable, "-c", FALL_BACK, *choices],
        capture_output=True,
        text=True,
        check=True,
        env={
            **kept,
            "PATH": str(tmp_path / "bin"),
            "TENSORTAP_CACHE_DIR": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path),
            **environment,
        },
    )


def test_without_a_compiler_auto_says_once_why_it_is_slow_and_native_is_an_error(tmp_path):
    done = without_a_compiler(tmp_path, "-", "auto", "native", "dispatch")
    lines = done.stdout.splitlines()
    assert lines[:8] == ["None True"] * 4 + ["auto True"] * 4
    assert len(set(lines[8:12])) == 1
    assert re.match(r"native NativeBuildError .*no C\+\+ compiler.* \| Install g\+\+", lines[8])
    assert lines[12:] == ["dispatch True"] * 4
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    for said in ("dispatch mode", "no C++ compiler", "Install g++"):
        assert said in warnings[0]
    assert "TENSORTAP_INTERCEPTOR=dispatch" in done.stderr


def test_a_failing_build_is_tried_once_by_a_process(tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\necho call >> {tmp_path}/calls\necho 'it is broken' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = without_a_compiler(tmp_path, "auto", "native", CXX=str(compiler))
    assert done.stdout.splitlines()[:4] == ["auto True"] * 4
    assert all(line.startswith("native NativeBuildError") for line in done.stdout.splitlines()[4:])
    assert done.stderr.count("it is broken") == 1
    assert done.stderr.count("use the dispatch mode") == 1
    assert (tmp_path / "calls").read_text().count("call") == 1


def test_who_accepts_the_dispatch_mode_hears_nothing(tmp_path):
    done = without_a_compiler(tmp_path, "-", TENSORTAP_INTERCEPTOR="dispatch")
    assert done.stdout.splitlines() == ["None True"] * 4
    assert done.stderr == ""
