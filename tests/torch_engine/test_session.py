"""Fetching and feeding by name, and what happens when a request cannot be served."""

from __future__ import annotations

import pickle
import threading
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.errors import (
    DeadlineExceededError,
    FeedError,
    GraphFinalizedError,
    InvalidArgumentError,
    SessionClosedError,
    UnknownTensorError,
)

pytestmark = pytest.mark.usefixtures("interceptor")


@pytest.fixture
def training():
    """A small classifier: (session, model, batch)."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "logits": logits}

    batch = {"x": torch.randn(3, 4), "y": torch.tensor([0, 1, 0])}
    return tt.torch.Session(step), model, batch


class TestFetching:
    def test_a_run_without_fetches_returns_what_the_step_returns(self, training):
        session, _, batch = training
        result = session.run(None, batch)
        assert isinstance(result["loss"], torch.Tensor)
        assert result["loss"].requires_grad

    def test_keys_and_tensor_names_in_any_structure(self, training):
        session, model, batch = training
        expected = model[0](batch["x"]).detach().numpy()
        fetched = session.run({"a": ["loss", ("model/0/addmm:0",)], "b": {"step": "global_step"}}, batch)
        loss, (hidden,) = fetched["a"]
        assert isinstance(loss, np.float32)
        assert isinstance(hidden, np.ndarray)
        np.testing.assert_array_equal(hidden, expected)
        assert fetched["b"] == {"step": 0}  # the step the run was executed at
        assert session.global_step == 1

    def test_intermediate_values_are_those_before_any_in_place_change(self):
        def step(x):
            y = x * 2
            y.add_(100)
            return y

        with tt.torch.Session(step) as session:
            before, after = session.run(["mul:0", "add_:0"], {"x": torch.ones(2)})
        np.testing.assert_array_equal(before, [2, 2])
        np.testing.assert_array_equal(after, [102, 102])

    def test_state_is_read_without_running_the_step(self, training):
        session, model, batch = training
        weight, step = session.run(["model/0/weight", "global_step:0"])
        np.testing.assert_array_equal(weight, model[0].weight.detach().numpy())
        assert step == 0
        session.run(None, batch)
        assert session.run("global_step:0") == 1

    def test_reading_state_executes_nothing_even_when_watched(self, training, tmp_path):
        session, _, _ = training
        options = tt.RunOptions()
        tt.add_debug_tensor_watch(options, "*", -1, debug_urls=f"file://{tmp_path}/dumps")
        assert session.run("global_step:0", options=options) == 0
        assert session.run("global_step:0", options=options) == 0
        with tt.DumpingDebugWrapperSession(session, tmp_path / "wrapped") as wrapped:
            assert wrapped.run("global_step:0") == 0

    def test_gradients_by_the_name_of_their_parameter(self, training):
        session, model, batch = training
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        (expected,) = torch.autograd.grad(loss, model[0].weight)
        got = session.run("gradients/model/0/weight:0", batch)
        np.testing.assert_array_equal(got, expected.numpy())

    def test_step_inputs_can_be_fetched(self, training):
        session, _, batch = training
        np.testing.assert_array_equal(session.run("x:0", batch), batch["x"].numpy())

    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [
            (torch.bfloat16, ml_dtypes.bfloat16),
            (torch.float16, np.float16),
            (torch.float64, np.float64),
            (torch.complex64, np.complex64),
            (torch.int8, np.int8),
            (torch.bool, np.bool_),
        ],
    )
    def test_every_dtype_arrives_as_itself(self, dtype, expected):
        session = tt.torch.Session(lambda x: {"y": x.to(dtype).clone()})
        values = session.run(["y", "clone:0"], {"x": torch.tensor([0.0, 1.0])})
        for value in values:
            assert value.dtype == expected
            assert value.astype(np.complex64).tolist() == [0, 1]

    def test_fetched_values_are_copies(self, training):
        session, model, batch = training
        weight = session.run("model/0/weight:0")
        weight[:] = 7
        assert not (model[0].weight == 7).any()

    def test_named_tuples_and_dataclasses_have_keys_too(self):
        class Out(NamedTuple):
            loss: torch.Tensor

        session = tt.torch.Session(lambda x: Out(x.sum()))
        assert session.run("loss", {"x": torch.ones(3)}) == 3

    def test_an_unknown_name_is_refused_before_the_step_once_the_graph_is_known(self, training):
        session, model, batch = training
        session.run("model/0/addmm:0", batch)
        before = model[0].weight.detach().clone()
        with pytest.raises(UnknownTensorError, match="Did you mean 'model/0/addmm'"):
            session.run("model/0/adddmm:0", batch)
        with pytest.raises(UnknownTensorError, match="Did you mean 'loss'"):
            session.run("los", batch)
        assert torch.equal(model[0].weight, before)
        assert session.global_step == 1

    def test_an_unknown_name_in_the_first_run_is_reported_after_it(self, training):
        session, _, batch = training
        with pytest.raises(UnknownTensorError, match="Did you mean 'model/0/addmm'"):
            session.run("model/0/adddmm:0", batch)

    def test_a_bare_word_in_the_first_run_is_taken_for_a_returned_key(self):
        session = tt.torch.Session(lambda x: {"loss": x * 2})
        assert session.run("loss", {"x": torch.tensor(3.0)}) == 6
        assert not session.graph.known, "nothing had to be intercepted"
        other = tt.torch.Session(lambda x: {"loss": x * 2})
        with pytest.raises(UnknownTensorError, match=r"If 'mul' is an op, write 'mul:0'"):
            other.run("mul", {"x": torch.tensor(3.0)})
        assert other.run("mul:0", {"x": torch.tensor(3.0)}) == 6

    def test_a_name_without_slot_must_be_unambiguous(self):  # B16
        session = tt.torch.Session(lambda x: {"y": torch.topk(x, 2).values})
        session.run("topk:0", {"x": torch.arange(4.0)})
        with pytest.raises(UnknownTensorError, match="has 2 outputs; say which one"):
            session.run("topk", {"x": torch.arange(4.0)})
        with pytest.raises(UnknownTensorError, match="has 2 outputs"):
            session.run("topk:5", {"x": torch.arange(4.0)})

    def test_a_reference_of_another_graph_is_refused(self, training):
        session, _, batch = training
        other = tt.Graph()
        with pytest.raises(ValueError, match="another graph"):
            session.run(other.tensor("loss"), batch)

    def test_a_fetch_must_be_a_name(self, training):
        session, _, batch = training
        with pytest.raises(TypeError, match="Cannot fetch 3"):
            session.run([3], batch)


class TestFeeding:
    def test_a_fed_tensor_replaces_the_value_for_the_rest_of_the_run(self, training):
        session, model, batch = training
        fed = torch.zeros(3, 8)
        expected = model[2](torch.tanh(fed)).detach().numpy()
        logits = session.run("logits", {**batch, "model/0/addmm:0": fed})
        np.testing.assert_array_equal(logits, expected)

    def test_gradients_stop_at_a_fed_tensor(self, training):
        session, model, batch = training
        before = [p.detach().clone() for p in model.parameters()]
        session.run(None, {**batch, "model/0/addmm:0": np.ones((3, 8), np.float32)})
        changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert changed == [False, False, True, True]

    def test_a_fed_gradient_reaches_the_optimizer(self, training):
        session, model, batch = training
        before = model[0].weight.detach().clone()
        session.run(None, {**batch, "gradients/model/0/weight:0": torch.ones(8, 4)})
        torch.testing.assert_close(model[0].weight.detach(), before - 0.1)

    def test_a_fed_parameter_is_put_back_after_the_run(self, training):
        session, model, batch = training
        before = model[2].bias.detach().clone()
        logits = session.run("logits", {**batch, "model/2/bias:0": [50.0, 60.0]})
        assert logits.min() > 40
        assert torch.equal(model[2].bias, before)

    def test_in_place_results_views_and_constants_can_be_fed(self):
        mask = torch.tensor([1.0, 0.0])

        def step(x):
            y = (x * mask).add_(1)
            return {"y": y, "row": y.view(1, 2) + 0}

        session = tt.torch.Session(step)
        x = torch.ones(2)
        np.testing.assert_array_equal(session.run("y", {"x": x, "add_:0": [5.0, 5.0]}), [5, 5])
        np.testing.assert_array_equal(session.run("row", {"x": x, "view:0": [[7.0, 8.0]]}), [[7, 8]])
        constant = next(n for n in session.graph.nodes if n.op_type == "Const")
        np.testing.assert_array_equal(session.run("y", {"x": x, constant.tensor(0): [9.0, 9.0]}), [10, 10])
        assert mask.tolist() == [1, 0]

    def test_shape_and_dtype_are_checked_before_the_step_when_known(self, training):
        session, model, batch = training
        session.run("model/0/addmm:0", batch)
        before = model[0].weight.detach().clone()
        with pytest.raises(FeedError, match=r"'model/0/addmm:0': its shape is \[3, 8\].*shape \[2\]"):
            session.run(None, {**batch, "model/0/addmm:0": [1.0, 2.0]})
        with pytest.raises(FeedError, match=r"it is float32, the fed value is float64.*torch.float32"):
            session.run(None, {**batch, "model/0/addmm:0": np.ones((3, 8))})
        assert torch.equal(model[0].weight, before)

    def test_shape_is_checked_in_the_first_run_too(self, training):
        session, _, batch = training
        with pytest.raises(FeedError, match="model/0/addmm:0"):
            session.run(None, {**batch, "model/0/addmm:0": torch.zeros(3, 9)})

    def test_conflicting_and_unknown_feeds(self, training):
        session, _, batch = training
        with pytest.raises(FeedError, match="'x' and 'x:0' are the same tensor"):
            session.run(None, {**batch, "x:0": batch["x"]})
        with pytest.raises(FeedError, match="needs 'y'"):
            session.run(None, {"x": batch["x"]})
        with pytest.raises(FeedError, match="global step"):
            session.run(None, {**batch, "global_step:0": 3})
        with pytest.raises(TypeError, match="feed_dict must map"):
            session.run(None, [1])
        with pytest.raises(UnknownTensorError, match=r"had no effect.*model/0/addmm"):
            session.run(None, {**batch, "model/0/adddmm:0": 1.0})
        with pytest.raises(UnknownTensorError, match="Did you mean 'model/0/addmm'"):
            session.run(None, {**batch, "model/0/adddmm:0": 1.0})


class TestDerivedNodes:
    def test_a_function_of_named_tensors_is_fetched_like_a_tensor(self, training):
        session, _, batch = training
        name = session.graph.add_derived("ratio", lambda a, b: (a / b).mean(), ["model/0/addmm:0", "loss"])
        twice = session.graph.add_derived("twice", lambda r: r * 2, [name])
        ratio, double, hidden, loss = session.run([name, twice, "model/0/addmm:0", "loss"], batch)
        assert ratio == pytest.approx((hidden / loss).mean())
        assert double == pytest.approx(2 * ratio)

    def test_adding_the_same_node_again_changes_nothing(self, training):
        session, _, _ = training
        first = session.graph.add_derived("n", abs, ["loss"])
        version = session.graph.version
        assert session.graph.add_derived("n", abs, ["loss"]) == first
        assert session.graph.version == version

    def test_after_finalisation_adding_raises(self, training):
        session, _, _ = training
        session.graph.finalize()
        with pytest.raises(GraphFinalizedError, match="late"):
            session.graph.add_derived("late", abs, ["loss"])

    def test_a_failing_function_names_the_node(self, training):
        session, _, batch = training
        session.graph.add_derived("broken", lambda loss: 1 // 0, ["loss"])
        with pytest.raises(InvalidArgumentError, match=r"'broken' of loss:0 failed.*division"):
            session.run("broken", batch)

    def test_a_random_function_does_not_change_what_the_program_draws(self, training):
        session, _, batch = training
        session.graph.add_derived("noise", lambda loss: torch.rand(3), ["loss"])
        state = torch.get_rng_state()
        session.run("noise", batch)
        assert torch.equal(torch.get_rng_state(), state)


class TestLifeOfASession:
    def test_run_after_close(self, training):
        session, _, batch = training
        with session:
            assert tt.get_default_session() is session
        assert tt.get_default_session() is None
        session.close()
        with pytest.raises(SessionClosedError):
            session.run(None, batch)

    def test_make_callable(self, training):
        session, _, batch = training
        run = session.make_callable(["loss"], feed_list=["x", "y"])
        (loss,) = run(batch["x"], batch["y"])
        assert loss > 0
        with pytest.raises(FeedError, match="feeds 2 tensors"):
            run(batch["x"])
        with pytest.raises(TypeError, match="accept_options"):
            run(batch["x"], batch["y"], options=tt.RunOptions())

    def test_devices_have_the_one_spelling(self, training):
        session, _, batch = training
        assert session.list_devices()[0].name == "/job:localhost/replica:0/task:0/device:CPU:0"
        session.run("model/0/addmm:0", batch)
        assert session.graph.node("model/0/addmm").device == session.list_devices()[0].name

    def test_step_functions_that_cannot_be_fed(self):
        with pytest.raises(TypeError, match="must be a function"):
            tt.torch.Session("step")
        with pytest.raises(TypeError, match=r"takes \*tensors"):
            tt.torch.Session(lambda *tensors: None)
        with pytest.raises(TypeError, match=r"modules\['model'\] must be"):
            tt.torch.Session(lambda: None, modules={"model": 3})

    def test_positional_only_and_default_parameters(self):
        def step(x, /, scale=2.0, *, shift=1.0):
            return {"y": x * scale + shift}

        session = tt.torch.Session(step)
        assert session.run("y", {"x": torch.tensor(3.0)}) == 7
        assert session.run("y", {"x": torch.tensor(3.0), "scale": 3.0, "shift": 0.0}) == 9

    def test_methods_find_the_modules_of_their_object(self):
        class Trainer:
            def __init__(self):
                self.net = torch.nn.Linear(2, 1)
                self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def step(self, x):
                return {"loss": self.net(x).sum()}

        session = tt.torch.Session(Trainer().step)
        assert session.run("net/addmm:0", {"x": torch.ones(1, 2)}).shape == (1, 1)
        assert list(session.program.optimizers) == ["opt"]

    def test_a_timeout_ends_the_run_between_two_ops(self):
        def step(x):
            while True:
                x = x + 1

        session = tt.torch.Session(step)
        with pytest.raises(DeadlineExceededError):
            session.run(None, {"x": torch.zeros(1)}, options=tt.RunOptions(timeout_in_ms=50))

    def test_several_threads_run_one_session(self):
        model = torch.nn.Linear(4, 8)
        session = tt.torch.Session(lambda x: {"y": model(x)})
        batch = {"x": torch.ones(3, 4)}
        results = []

        def work():
            results.extend(session.run("model/addmm:0", batch).shape for _ in range(5))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [(3, 8)] * 15
        assert session.global_step == 15
        assert not any(node.name.endswith("addmm_1") for node in session.graph.nodes)


def test_a_returned_key_is_a_tensor_name_too():
    """`loss:0` is how ported code spells `loss`; known from the first run on, in every session of the graph."""
    model = torch.nn.Linear(3, 1)

    def step(x):
        return {"loss": model(x).square().sum(), "addmm": x.sum()}

    feed = {"x": torch.ones(2, 3)}
    with tt.Graph().as_default() as graph:
        for _ in range(2):
            twice = graph.add_derived("twice", lambda loss: 2 * loss, ["loss:0"])
            session = tt.torch.Session(step)
            loss, same, doubled, again = session.run(["loss:0", "loss", twice, "twice"], feed)
            assert loss == same == doubled / 2 == again / 2
            assert session.run("loss:0", feed) == loss
            assert session.run("addmm", feed) == 6
            assert session.run("model/addmm:0", feed).shape == (2, 1)  # traced: from now on names are checked
    with pytest.raises(UnknownTensorError, match="Did you mean 'loss'"):
        session.run("los:0", feed)
    with pytest.raises(UnknownTensorError, match="There is no tensor 'loss:1'"):
        session.run("loss:1", feed)
    with graph.as_default(), pytest.raises(UnknownTensorError, match="Did you mean 'loss'"):
        graph.add_derived("other", abs, ["los:0"])
    with tt.torch.monitor(model) as m:
        for _ in range(2):
            with m.run(["loss:0", "loss"]) as run:
                run.publish(loss=model(torch.ones(2, 3)).sum())
            assert run.results[0] == run.results[1]


def test_a_name_with_a_slot_is_the_node_where_there_is_one():
    session = tt.torch.Session(lambda x: {"sum": x.sum() * 2})
    session.run("sum", {"x": torch.ones(3)}, tt.RunOptions(output_partition_graphs=True))
    assert session.run(["sum", "sum:0"], {"x": torch.ones(3)}) == [6, 3]
    assert session.run("sum:0", {"x": torch.ones(3)}) == 3


def test_errors_are_made_and_copied_with_two_or_three_arguments():
    for error in (
        tt.errors.OutOfRangeError(None, None, "the end"),
        tt.errors.OutOfRangeError(None, "the end"),
        tt.errors.OutOfRangeError(None, None, message="the end"),
        tt.errors.OutOfRangeError(message="the end"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (error.message, str(error), error.node, error.op) == ("the end", "the end", None, None)
        assert (type(copy), copy.message, copy.node) == (type(error), "the end", None)
    node = tt.records.Node("log", "log")
    assert tt.errors.OpError(node, "bad").node_name == "log"
    assert tt.errors.OpError(None, node, "bad").op.name == "log"
    assert pickle.loads(pickle.dumps(tt.errors.OpError(node, "bad"))).node == node
