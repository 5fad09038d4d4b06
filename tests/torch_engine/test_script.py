"""Following a program that nobody changed: where its runs begin and end, and what its models are called."""

from __future__ import annotations

import copy
import re
import sys
import threading
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tensortap.analyze.session import search_session
from tensortap.engines.observe.limits import Limits
from tensortap.engines.torch.follow import Follower, follow
from tensortap.engines.torch.follow.module_hooks import ModuleHooks
from tensortap.launch.watch import ScriptOptions, ScriptWatch
from tensortap.pill import MAX
from tensortap.reader import SessionDir
from tensortap.store.description import read_description
from tensortap.watch.options import WatchOptions

pytestmark = pytest.mark.usefixtures("interceptor")


class Followed:
    """What became of a program: its runs as the directory has them."""

    def __init__(self, root, seen):
        self.seen = seen
        self.session = SessionDir(root)
        self.runs = [run.open(validate=False) for run in SessionDir(root)]

    @property
    def steps(self):
        return [run.source.core_metadata[0].global_step for run in self.runs]

    def counts(self, name):
        """How many nodes of each run have a name that begins so and goes on with digits or not at all."""
        return [
            sum(node.rpartition("_")[0] == name or node == name for node in run.nodes()) for run in self.runs
        ]


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """Run a function as the program: `followed(function, **options)`."""
    # A program that has loaded our backend of torch.compile is followed by its optimizers only.
    monkeypatch.delitem(sys.modules, "tensortap.engines.torch.compiled", raising=False)

    def call(program, **options):
        root = tmp_path / options.pop("root", "dumps")
        watched = WatchOptions(["DebugNumericSummary", *options.pop("more_ops", [])])
        watch = ScriptWatch(ScriptOptions(root, watched, **{"keep": "all", **options}))
        follower = follow(watch)
        error = None
        try:
            program()
        except Exception as raised:
            error = raised
            raise
        finally:
            follower.end(error)
            watch.close()
            call.result = Followed(root, watch.seen)
        return call.result

    return call


def linear_step(model, optimizer, x=None):
    loss = model(torch.ones(2, 3) if x is None else x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_every_optimizer_step_is_a_run_with_the_names_of_the_program(followed):
    def program():
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.ones(2, 3)
            linear_step(net, optimizer, x / x.mean())

    runs = followed(program)
    assert runs.steps == [0, 1, 2]
    for run in runs.runs:
        assert {"div", "net/0/addmm", "gradients/net/1/weight"} <= set(run.nodes())
        assert "optimizer/SGD/net/1/weight/add_" in run.nodes()
    # What prepares the batch belongs to the step that uses it.
    assert runs.runs[1].node_inputs("net/0/addmm")[1] == "div"


def test_gradient_accumulation_is_one_run(followed):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(6):
            net(torch.ones(2, 3)).sum().backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    runs = followed(program)
    assert runs.steps == [0, 1]
    assert runs.counts("net/addmm") == [3, 3]


def test_optimizers_that_step_together_are_one_run_and_the_phases_of_a_gan_are_two(followed):
    def program():
        encoder, decoder = nn.Linear(3, 2), nn.Linear(2, 1)
        one = torch.optim.SGD(encoder.parameters(), lr=0.1)
        two = torch.optim.Adam(decoder.parameters(), lr=0.1)
        for _ in range(2):
            decoder(encoder(torch.ones(2, 3))).sum().backward()
            one.step()
            two.step()
        for _ in range(2):
            decoder(torch.ones(2, 2)).sum().backward()
            two.step()
            encoder(torch.ones(2, 3)).sum().backward()
            one.step()

    runs = followed(program)
    assert runs.seen.steps == 6
    assert runs.counts("encoder/addmm") == [1, 1, 0, 1, 0, 1]
    assert runs.counts("decoder/addmm") == [1, 1, 1, 0, 1, 0]


def test_evaluation_between_steps_is_cut_into_its_calls_and_counts_no_steps(followed):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            linear_step(net, optimizer)
            net.eval()
            for _ in range(3):
                net(torch.ones(5, 3))
            net.train()

    runs = followed(program)
    assert runs.counts("net/addmm") == [1] * 8
    assert runs.steps == [0, 1, 1, 1, 1, 2, 2, 2]


def test_small_calls_without_gradients_share_a_run_until_the_next_step(followed):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for calls in 20, 260:
            linear_step(net, optimizer)
            with torch.no_grad():
                for _ in range(calls):
                    net(torch.ones(5, 3))

    runs = followed(program)
    assert runs.counts("net/addmm") == [1, 20, 1, 256, 4]
    assert runs.steps == [0, 1, 1, 2, 2]


def test_a_run_that_is_shared_ends_soon_after_a_bad_value(followed):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        linear_step(net, optimizer)
        with torch.no_grad():
            for number in range(250):
                (net(torch.ones(5, 3)) * 0 / (number - 100)).mean()

    runs = followed(program)
    first, *others = runs.counts("net/addmm")[1:]
    assert 100 < first < 100 + 2 * 16
    assert others == [250 - first]


@pytest.mark.parametrize(("large", "looked_for"), [(float("inf"), None), (1e8, lambda pill: pill[MAX] > 1e4)])
def test_a_run_that_repeats_itself_is_heard_of_while_it_lasts(followed, large, looked_for):
    """Also where its calls take no time, so that no clock has its records handed over."""

    def program():
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        usual, odd = torch.ones(5, 3), torch.full((5, 3), large)
        for bad in (None, None, 100):
            linear_step(net, optimizer)
            with torch.no_grad():
                for number in range(250):
                    net(odd if number == bad else usual).abs().mean()

    counts = followed(program, condition=looked_for).counts("net/addmm")
    assert 100 < counts[-2] < 100 + 2 * 16
    assert sum(counts[-2:]) == 250


def test_large_models_have_a_run_for_each_call_without_gradients(followed):
    def program():
        net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(130)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        linear_step(net, optimizer)
        with torch.no_grad():
            for _ in range(3):
                net(torch.ones(5, 3))

    assert followed(program).counts("net/0/addmm") == [1, 1, 1, 1]


def test_what_is_evaluated_with_another_model_does_not_grow_into_the_step_that_follows(followed):
    def program():
        net, average = nn.Linear(3, 1), nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            with torch.no_grad():
                for _ in range(3):
                    average(torch.ones(5, 3))
            linear_step(net, optimizer)

    runs = followed(program)
    assert runs.counts("average/addmm")[-4:] == [3, 0, 3, 0]
    assert runs.counts("net/addmm")[-4:] == [0, 1, 0, 1]


def test_a_bad_value_of_calls_that_share_a_run_is_told_with_its_call(followed):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        linear_step(net, optimizer)
        with torch.no_grad():
            for number in range(6):
                (net(torch.ones(5, 3)) * 0 / (number - 3)).mean()

    finding = search_session(followed(program).session).first_bad
    assert finding is not None
    assert finding.node.name == "div_3"
    assert finding.during == "evaluation: nothing is trained in this run; call 4 in it"


def test_without_an_optimizer_every_call_of_the_model_is_a_run(followed):
    def program():
        network = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        for _ in range(3):
            network(torch.ones(2, 3)).sum()

    runs = followed(program)
    assert runs.counts("network/0/addmm") == [1, 1, 1]
    assert runs.counts("sum") == [1, 1, 1]
    assert runs.seen.steps == 0


@pytest.mark.filterwarnings("ignore:.torch.jit.trace.* is deprecated")
def test_a_model_that_is_traced_starts_no_run(followed):
    graphs = []

    def program():
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        graphs.append(str(torch.jit.trace(net, torch.ones(2, 3), check_trace=False).graph))
        net(torch.ones(2, 3))
        graphs.append(str(torch.jit.trace(net, torch.ones(2, 3), check_trace=False).graph))

    program()
    assert len(followed(program).runs) == 1
    plain, watched = (
        [re.sub(r"\.?___torch_mangle_\d+", "", each) for each in pair] for pair in (graphs[:2], graphs[2:])
    )
    assert watched == plain


@pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated")
def test_a_frozen_script_is_a_model_like_others(followed):
    def program():
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
        frozen = torch.jit.freeze(torch.jit.script(net))
        for _ in range(3):
            net(torch.ones(2, 3))
            frozen(torch.ones(2, 3))

    assert len(followed(program).runs) == 3


@pytest.mark.parametrize("every", [None, 2])
def test_what_must_be_compiled_whole_is_compiled_as_without_us(followed, every, interceptor):
    """Outside of watched runs the compiler sees nothing of our hooks; where one ends, a function may be half-way."""
    if every is not None and interceptor == "dispatch":
        pytest.skip("a dispatch mode must not end within a compiled function")
    graphs = []

    def program():
        def backend(graph, inputs):
            graphs.append([node.op for node in graph.graph.nodes])
            return graph.forward

        net, relu = nn.Linear(3, 3), nn.ReLU()

        @torch.compile(fullgraph=True, backend=backend)
        def infer(x):
            return relu(net(x)).sum()

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.compile(relu, fullgraph=True, backend=backend)(torch.ones(2, 3))
            infer(torch.ones(2, 3))
            net(torch.ones(2, 3))
            for _ in range(12):
                infer(torch.ones(2, 3))

    program()
    plain, graphs[:] = graphs[:], []
    torch.compiler.reset()
    followed(program, every=every)
    # What is watched runs eagerly: everything, or the preparation and every other run.
    assert graphs == ([] if every is None else plain[1:])
    torch.compiler.reset()


def test_operations_directly_in_a_model_belong_to_it_from_its_first_call_on(followed):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x * self.weight).exp()

    def program():
        model = Model()
        for _ in range(2):
            model(torch.ones(3))

    runs = followed(program)
    for run in runs.runs:
        assert {"model/x", "model/weight", "model/mul", "model/exp"} <= set(run.nodes())


def test_a_program_without_modules_is_followed_from_its_optimizer_on(followed):
    def program():
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            (weight * 2).sum().backward()
            optimizer.step()

    runs = followed(program)
    assert runs.steps == [0, 1, 2]
    assert runs.counts("mul") == [1, 1, 1]


def test_without_models_and_optimizers_every_backward_pass_ends_a_run(followed):
    def program():
        weight, criterion = torch.ones(3, requires_grad=True), nn.MSELoss()
        for _ in range(4):
            criterion(weight.exp(), torch.zeros(3)).backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
                weight.grad = None

    ran = followed(program)
    assert ran.steps == [0, 1, 2, 3, 4]  # the last one is what comes after the last pass
    assert ran.counts("exp") == [1, 1, 1, 1, 0]
    assert (ran.seen.steps, ran.seen.passes) == (0, 4)


def test_a_graph_that_is_kept_is_used_again_in_the_same_step(followed):
    def program():
        weight = torch.ones(3, requires_grad=True)
        for _ in range(3):
            (slope,) = torch.autograd.grad(weight.exp().sum(), weight, create_graph=True)
            slope.square().sum().backward()

    ran = followed(program)
    assert ran.counts("exp")[:3] == [1, 1, 1]
    assert ran.seen.passes == 3


def test_a_transformation_of_functions_ends_a_run_when_the_outermost_does(followed):
    def program():
        slopes = torch.func.vmap(torch.func.grad(torch.func.grad(torch.sin)))
        for _ in range(3):
            slopes(torch.ones(5)).exp()

    ran = followed(program)
    assert ran.seen.passes == 3
    assert ran.counts("exp")[:3] == [0, 1, 1]


def test_backward_passes_before_the_first_optimizer_count_no_steps_of_it(followed):
    def program():
        torch.ones(3, requires_grad=True).sum().backward()
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            for _ in range(2):
                model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    ran = followed(program)
    assert ran.counts("model/addmm") == [0, 0, 2, 2]
    assert ran.steps[-2:] == [0, 1]


def test_a_copied_optimizer_ends_runs_too(followed):
    def program():
        net = nn.Linear(3, 1)
        net, optimizer = copy.deepcopy((net, torch.optim.SGD(net.parameters(), lr=0.1)))
        for _ in range(3):
            linear_step(net, optimizer)

    runs = followed(program)
    assert runs.counts("optimizer/SGD/net/weight/add_") == [0, 1, 1, 1]  # the first is the copying


def test_steps_that_a_gradient_scaler_skips_end_their_run(followed):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=100)
        for number in range(3):
            loss = net(torch.full((2, 3), 1e3 if number == 0 else 1.0)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scaler.update(1.0)

    runs = followed(program)
    assert runs.seen.skipped == 1
    assert runs.counts("net/addmm") == [1, 1, 1, 0]  # the last is the update of the scale


def test_an_optimizer_per_parameter_that_steps_inside_the_backward_pass(followed):
    def program():
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in net.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            net(torch.ones(2, 3)).sum().backward()

    runs = followed(program)
    assert runs.counts("net/0/addmm") == [1, 1, 1]


def test_a_model_recomputed_in_the_backward_pass_starts_no_run(followed):
    from torch.utils.checkpoint import checkpoint

    def program():
        net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            checkpoint(net[1], net[0](torch.ones(2, 3)), use_reentrant=False).sum().backward()
            optimizer.step()

    runs = followed(program)
    assert runs.steps == [0, 1]
    assert runs.counts("recompute/net/1/0/addmm") == [1, 1]


def test_models_made_late_and_models_let_go_of(followed):
    def program():
        for width in (4, 5):
            model = nn.Linear(3, width)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            linear_step(model, optimizer)
            linear_step(model, optimizer)
            del model, optimizer

    runs = followed(program)
    # Making the second model is a run of its own, for it was nobody's before its optimizer was made.
    assert runs.counts("model/addmm") == [1, 1, 0, 1, 1]
    assert runs.steps == [0, 1, 2, 2, 3]


def test_parts_without_parameters_do_not_outlive_their_models(followed):
    act = nn.Tanh()  # shared by all models of the program

    def program():
        for width in (3, 4):
            net = nn.Sequential(nn.Linear(3, width), act)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            linear_step(net, optimizer)
            del net, optimizer
        linear_step(other, torch.optim.SGD(other.parameters(), lr=0.1))
        linear_step(other, torch.optim.SGD(other.parameters(), lr=0.1), act(torch.ones(2, 3)))

    other = nn.Linear(3, 1)
    *_, last = followed(program).runs
    assert "act/tanh" in last.nodes()


def test_models_of_a_list_that_was_made_for_an_optimizer_keep_their_names(followed):
    def program():
        def made():
            encoder, decoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)
            both = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
            return encoder, decoder, torch.optim.SGD(both.parameters(), lr=0.1)

        encoder, decoder, optimizer = made()  # the dictionary is gone
        for _ in range(3):
            with torch.no_grad():
                decoder(encoder(torch.ones(2, 3)))
            linear_step(encoder, optimizer)
            linear_step(decoder, optimizer, encoder(torch.ones(2, 3)))
        both = nn.Linear(3, 1)
        linear_step(both, torch.optim.SGD(both.parameters(), lr=0.1))

    runs = followed(program).runs
    names = [node for run in runs for node in run.nodes()]
    for name in ("both/encoder/0/weight", "both/encoder/0/addmm", "both/decoder/addmm", "both/decoder/bias"):
        assert name in names
    assert not [name for name in names if "const" in name], "every parameter is known"
    assert "both_1/weight" in runs[-1].nodes(), "a name that is in use"
    assert "both_1/weight" not in runs[-2].nodes()


def test_an_exception_in_the_middle_of_a_step_is_the_error_of_its_run(followed):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        linear_step(net, optimizer)
        net(torch.ones(2, 3))
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        followed(program)
    first, second = followed.result.runs
    assert first.error is None
    assert "mine" in second.error
    assert "net/addmm" in second.nodes()


def test_only_chosen_steps_are_watched(followed):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            linear_step(net, optimizer)

    runs = followed(program, steps=range(2, 4))
    assert runs.steps == [2, 3]
    assert runs.seen.steps == 6


def test_other_threads_are_left_alone(followed):
    def elsewhere():
        other = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        linear_step(other, optimizer, torch.ones(1, 2))

    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            linear_step(net, optimizer)

    runs = followed(program)
    assert runs.steps == [0, 1]
    assert not any("other" in name for run in runs.runs for name in run.nodes())


def test_everything_installed_is_gone_afterwards(followed):
    from torch.nn.modules import module
    from torch.optim import Optimizer, optimizer

    before = Optimizer.__init__, torch.amp.GradScaler.step
    followed(lambda: linear_step(net := nn.Linear(3, 1), torch.optim.SGD(net.parameters(), lr=0.1)))
    assert (Optimizer.__init__, torch.amp.GradScaler.step) == before
    hooks = (module._global_forward_pre_hooks, module._global_forward_hooks)
    assert not any((*hooks, optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks))


def test_results_are_those_of_the_program_alone(tmp_path, followed):
    def program():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for _ in range(4):
            linear_step(net, optimizer, torch.randn(5, 3))
        results.append([each.clone() for each in net.state_dict().values()])

    results = []
    program()
    followed(program)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_making_a_data_set_is_not_watched_to_its_end(followed, monkeypatch):
    monkeypatch.setattr("tensortap.engines.torch.follow.runs._MOST_OUTSIDE", 300)

    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = [torch.full((3,), 1.0) for _ in range(2000)]
        for x in data[:2]:
            linear_step(net, optimizer, x[None])

    runs = followed(program)
    assert runs.counts("net/addmm") == [0, 1, 1]
    assert 250 < runs.counts("full")[0] <= 300


def test_long_steps_without_modules_are_watched_whole_in_the_end(followed, monkeypatch):
    monkeypatch.setattr("tensortap.engines.torch.follow.runs._MOST_OUTSIDE", 100)

    def program():
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4):
            y = weight
            for _ in range(200):
                y = y * 1.0
            y.sum().backward()
            optimizer.step()

    runs = followed(program)
    assert runs.seen.steps >= 3
    assert "optimizer/SGD/param_0/add_" in runs.runs[-1].nodes()
    assert "gradients/mul_199/mul" in runs.runs[-1].nodes()


def bad_at(bad_step, steps):
    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(steps):
            linear_step(net, optimizer, torch.full((2, 3), float("nan") if step == bad_step else 1.0))

    return program


def test_a_healthy_program_of_any_length_keeps_samples_and_its_last_runs(followed):
    runs = followed(bad_at(-1, 40), keep="samples", last=3)
    assert runs.steps == [*range(11), 20, 30, 37, 38, 39]
    assert runs.seen.runs == 40


def test_a_ring_keeps_values_of_the_runs_before_a_bad_one_and_nothing_of_others(followed):
    runs = followed(bad_at(12, 20), keep="none", last=2, more_ops=["DebugIdentity"])
    # In the step after it, what the bad weights spoil is bad for the first time.
    assert runs.steps[:4] == [10, 11, 12, 13]
    for run in runs.runs:
        assert run.get_tensors("net/addmm", 0, "DebugIdentity")
    assert runs.seen.suspected == len(runs.steps) - 2


def test_a_run_that_is_too_long_is_recorded_up_to_a_limit_and_its_gradients_beyond(followed, monkeypatch):
    monkeypatch.setattr("tensortap.engines.torch.follow.runs.Limits", partial(Limits, new=200))

    def program():
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            y = net(torch.ones(2, 3))
            for _ in range(400):
                y = y * float("inf" if len(results) == 2 else 1.0)
            (y.sum() * 0.0).backward()
            results.append(net.weight.grad.isnan().any().item())
            optimizer.step()
            optimizer.zero_grad()

    results = []
    runs = followed(program)
    assert results == [False, False, True, False]  # infinity times zero
    # Each run knows what those before it have learned, and comes 200 nodes further.
    first, second, *_ = (len(run.nodes()) for run in runs.runs)
    assert 180 < first < 220
    assert 380 < second < 420
    run, left_out, executed, long_runs = runs.seen.unrecorded
    assert (run, long_runs) == (0, 4)
    assert executed - left_out == pytest.approx(first, abs=5)
    assert left_out > 500
    assert [read_description(run.path).counts["unrecorded"] > 0 for run in runs.session.runs] == [True] * 4
    pills = runs.session.history("gradients/net/weight:0")
    assert (pills["nan"] > 0).tolist() == results


def test_what_an_optimizer_is_given_stays_what_it_is(followed):
    class Given:
        value = 3

        def __call__(self):
            return 1

    class Own(torch.optim.Optimizer):
        def step(self, model, given, closure=None):
            taken.append((model, given))
            with torch.enable_grad():
                closure().backward()
            for _, parameter in model.named_parameters():
                parameter.data.sub_(parameter.grad)

    taken, expected = [], []

    def program():
        net, given = nn.Linear(3, 1), Given()
        optimizer = Own(net.parameters(), {})
        for _ in range(2):
            optimizer.step(net, given, closure=lambda: net(torch.ones(2, 3)).square().mean())
            expected.append((net, given))

    runs = followed(program)
    assert taken == expected
    assert runs.counts("net/addmm")[:2] == [1, 1]  # and what the closure does is the program's own


def test_memory_that_nobody_has_written_is_neither_good_nor_bad(followed, gloo):
    def program():
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            gathered = torch.empty(16)
            rows = gathered.view(4, 4)
            work = torch.distributed.all_gather_single(
                gathered, net(torch.ones(4, 4)).detach().view(-1), async_op=True
            )
            rows[1:]
            work.wait()
            (gathered.mean() + net(rows)).sum().backward()
            filled = torch.empty(4)
            filled[:2] = 1.0
            filled.view(2, 2)
            filled[2:] = 2.0
            filled.view(2, 2)
            optimizer.step()

    runs = followed(program)
    assert runs.seen.suspected == 0
    recorded = runs.session.tensors()
    assert any("allgather" in name for name in recorded)


@pytest.fixture
def gloo(tmp_path):
    """A process group of one, and memory that comes as NaN."""
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    torch.use_deterministic_algorithms(True)  # fills what is allocated with NaN
    yield
    torch.use_deterministic_algorithms(False)
    torch.distributed.destroy_process_group()


class Fragile(nn.Module):
    """Calls itself, and raises now and then."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x, times=2):
        if times < 0:
            raise ValueError("too few")
        return self(self.inner(x), times - 1) if times else self.inner(x)


def rollouts_and_updates():
    torch.manual_seed(0)
    actor, critic, fragile = nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 1), nn.Dropout()), Fragile()
    x = torch.randn(2, 3)
    actor(x)  # there is no optimizer yet
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.1)
    for epoch in range(3):
        critic.train(epoch == 1)
        with torch.no_grad():
            for _ in range(25):
                actor(x), critic(x)
        for index in range(3):
            actor(x).sum()  # with gradients, and in vain
            with pytest.raises(ValueError, match="too few"):
                fragile(x, times=-1)
            with torch.no_grad():
                fragile(x)
            loss = actor(x).square().mean() + critic(x).square().mean()
            loss.backward()
            if index:
                optimizer.step()
        critic = nn.Sequential(nn.Linear(3, 1), nn.Dropout())  # perhaps where the other one was
    del optimizer
    with torch.no_grad():
        actor(x), actor(x)


def told_of(followed):
    return [
        (step, list(run.nodes()), facts.trains, facts.modes, len(facts.calls))
        for step, run in zip(followed.steps, followed.runs, strict=True)
        for facts in [run.source.circumstances]
    ]


def test_calls_that_are_only_noted_make_the_same_runs_as_calls_that_are_heard_of(
    followed, monkeypatch, interceptor
):
    heard = []
    on_model = Follower.on_model

    def hear(follower, module, args):
        heard.append(module)
        on_model(follower, module, args)

    monkeypatch.setattr(Follower, "on_model", hear)
    noted = told_of(followed(rollouts_and_updates))
    heard_of_noted = len(heard)
    monkeypatch.setattr(ModuleHooks, "notes_calls", False)
    each_heard = told_of(followed(rollouts_and_updates, root="each heard"))
    assert noted == each_heard
    assert any(calls for *_, calls in noted)
    assert len(heard) - heard_of_noted > 190
    if interceptor == "native":  # the first ones are looked at, and those that may end a run
        assert heard_of_noted < 150


class NamesOfOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


def test_a_learning_rate_that_is_a_tensor_is_read_without_an_operator(followed):
    """Runs end in the middle of the program's modes, which see operators only if the program calls them."""
    modes = []

    def program():
        idle = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=torch.tensor(0.5))
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25, dtype=torch.float64))
        modes.append(NamesOfOps())
        for _ in range(3):
            with modes[-1]:
                loss = model(torch.ones(4, 3)).mean()
            loss.backward()
            optimizer.step()
        assert idle.param_groups

    found = followed(program)
    program()  # alone
    assert modes[0].seen == modes[1].seen
    last = read_description(found.runs[1].source.path).circumstances
    assert last.learning_rates == {"SGD": 0.5, "Adam": 0.25}
