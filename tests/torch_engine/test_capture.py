"""Every op of every kind of model is seen, named and wired faithfully, without disturbing the program."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys

import pytest
import torch

from tensortap.engines.torch import Session
from tensortap.seam.options import RunMetadata, RunOptions
from tests.torch_engine.replay import record, replay, same_bits
from tests.torch_engine.zoo import ZOO

pytestmark = pytest.mark.usefixtures("interceptor")

# L-BFGS makes more ops in every step while its history grows: a program that changes from run to run.
CHANGING = {"optimizer_closure"}
# The dispatch mode takes a conditional for one op; the native interceptor sees what it executes, and PyTorch traces
# its branches anew in every step.
TRACING = {"higher_order_cond"}

everything = pytest.mark.parametrize("name", sorted(ZOO))


def session_of(case, step=None, **options):
    return Session(step or case.step, modules=case.modules, optimizers=case.optimizers, **options)


def traced(session, batch):
    metadata = RunMetadata()
    session.run(None, batch, options=RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return [node.name for node in metadata.nodes]


@everything
@pytest.mark.parametrize("run", [0, 1])
def test_the_recorded_graph_replays_bit_for_bit(name, run):
    case = ZOO[name]()
    if run == 1:
        case.step(**case.batch(0))
    recording = record(session_of, case, run)
    compared = 0
    for node, slot, replayed, recorded in replay(recording):
        assert same_bits(replayed, recorded), f"{node.name}:{slot} ({node.op_type}) from {node.inputs}"
        compared += 1
    assert compared > 10


@everything
def test_results_are_bit_identical_with_and_without_interception(name):
    plain = ZOO[name]()
    torch.manual_seed(7)
    expected = [plain.step(**plain.batch(run)) for run in range(3)]
    generator, state = torch.get_rng_state(), plain.state()

    watched = ZOO[name]()
    torch.manual_seed(7)
    session = session_of(watched)
    tapped = RunOptions(taps=[lambda node, slot, tensor: None])
    got = [session.run(None, watched.batch(run), options=tapped) for run in range(3)]
    assert session.faults == 0
    assert same_bits(torch.get_rng_state(), generator)
    for before, after in zip(expected, got, strict=True):
        for key, value in before.items():
            if isinstance(value, torch.Tensor):
                assert same_bits(value.detach(), after[key].detach()), key
    for key, value in watched.state().items():
        assert same_bits(value, state[key]), key


@everything
def test_names_are_the_same_in_every_run(name):
    case = ZOO[name]()
    session = session_of(case)
    runs = [traced(session, case.batch(0)) for _ in range(4)]
    for names in runs:
        assert len(names) == len(set(names))
    if name in CHANGING:
        assert set(runs[1]) <= set(runs[2])
    else:
        # The first run also allocates optimizer state; from then on nothing may change.
        assert runs[1] == runs[2] == runs[3]
        assert {n for n in runs[0] if n.startswith("gradients/")} == {
            n for n in runs[1] if n.startswith("gradients/")
        }


DIGEST = """
import torch
from tests.torch_engine.test_capture import digest
print(digest())
"""


def digest():
    lines = []
    for name in ("transformer_explicit", "checkpoint_nonreentrant", "adamw_forloop", "vmap_grad"):
        case = ZOO[name]()
        session = session_of(case)
        lines += [each for run in range(2) for each in traced(session, case.batch(run))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_names_are_the_same_in_a_second_process(interceptor):
    other = subprocess.run(
        [sys.executable, "-c", DIGEST],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "5", "TENSORTAP_INTERCEPTOR": interceptor, "HOME": os.environ["HOME"]},
    )
    assert other.stdout.strip() == digest()


@everything
def test_the_graph_settles(name, interceptor):
    if interceptor == "native" and name in TRACING:
        pytest.skip("the branches of a conditional are traced anew in every run")
    if name in CHANGING or name == "bool_int_ops":
        pytest.skip("this program executes different ops or shapes in every run")
    case = ZOO[name]()
    session = session_of(case)
    versions = []
    for run in range(5):  # from one line: where a run is called from is part of its nodes
        traced(session, case.batch(run))
        versions.append(session.graph.version)
    assert versions[4] == versions[3]


@everything
def test_no_tensor_is_kept_alive_after_a_run(name):
    def tensors_left(watch):
        case = ZOO[name]()
        session = session_of(case)
        for run in range(2):
            options = RunOptions(taps=[lambda node, slot, tensor: None]) if watch else None
            session.run(None, case.batch(run), options=options)
        del run
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()), (case, session)

    gc.collect()
    gc.freeze()  # what other tests have left in this process is not looked through
    try:
        assert tensors_left(watch=True)[0] == tensors_left(watch=False)[0]
    finally:
        gc.unfreeze()
