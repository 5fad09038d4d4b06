"""The base wrapper (C1 to C19, C43)."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import tensortap as tt
from tensortap.debug.actions import (
    OnRunEndResponse,
    OnRunStartAction,
    OnRunStartResponse,
    OnSessionInitAction,
    OnSessionInitResponse,
)
from tensortap.debug.base import BaseDebugWrapperSession
from tensortap.errors import InvalidArgumentError, OpError
from tensortap.seam.options import RunMetadata, RunOptions, TraceLevel
from tensortap.sink.memory import collect
from tests.debug.steps import X, failing_session, linear_session
from tests.hooks.counter_session import CounterSession


class Wrapper(BaseDebugWrapperSession):
    """Writes down what it is asked, and answers what it was told to."""

    def __init__(self, sess, *args, init=None, start=None, end=None, **kwargs):
        self.inits, self.starts, self.ends = [], [], []
        self.init = init or OnSessionInitResponse(OnSessionInitAction.PROCEED)
        self.start = start or OnRunStartResponse(OnRunStartAction.NON_DEBUG_RUN, [])
        self.end = end or OnRunEndResponse()
        super().__init__(sess, *args, **kwargs)

    def on_session_init(self, request):
        self.inits.append(request)
        return self.init

    def on_run_start(self, request):
        self.starts.append(request)
        return self.start

    def on_run_end(self, request):
        self.ends.append(request)
        return self.end


def debugging(sess, *args, ops="DebugIdentity", **kwargs):
    start = OnRunStartResponse(OnRunStartAction.DEBUG_RUN, ["memcbk:///seen"], ops)
    return Wrapper(sess, *args, start=start, **kwargs)


@pytest.fixture
def records():
    with collect("seen") as records:
        yield records


# --- making one ------------------------------------------------------------------------------------


def test_engine_sessions_and_monitored_sessions_can_be_wrapped():
    """C1."""
    session = linear_session()
    assert Wrapper(session).session is session
    with tt.MonitoredSession(linear_session()) as monitored:
        assert Wrapper(monitored).session is monitored


@pytest.mark.parametrize("what", ["text", "wrapper", "singular", "type"])
def test_nothing_else_can(what):
    """C1."""
    session = linear_session()
    other = {
        "text": "session",
        "wrapper": Wrapper(session),
        "singular": tt.SingularMonitoredSession(session=session),
        "type": object,
    }[what]
    with pytest.raises(TypeError, match="A debug wrapper goes around an engine session"):
        Wrapper(other)


def test_the_session_is_announced_once():
    """C2."""
    session = CounterSession()
    wrapper = Wrapper(session)
    wrapper.run("y")
    assert [request.session for request in wrapper.inits] == [session]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (OnSessionInitResponse(OnSessionInitAction.REMOTE_INSTR_LOOP), NotImplementedError, "REMOTE"),
        (OnSessionInitResponse("dance"), ValueError, "Invalid OnSessionInitAction value: 'dance'"),
        ("proceed", TypeError, "on_session_init must return OnSessionInitResponse, got str"),
    ],
)
def test_bad_answers_to_the_announcement(answer, error, message):
    """C2."""
    with pytest.raises(error, match=message):
        Wrapper(CounterSession(), init=answer)


# --- being a session -------------------------------------------------------------------------------


def test_the_wrapper_is_a_session():
    """C3, C5, C6."""
    session = linear_session()
    wrapper = Wrapper(session)
    assert wrapper.graph is session.graph
    assert wrapper.graph_def.node
    assert wrapper.sess_str == ""
    assert wrapper.run_call_count == 0
    assert wrapper.increment_run_call_count() == 1
    assert wrapper.list_devices() == session.list_devices()
    for call in (wrapper.partial_run_setup, lambda f: wrapper.partial_run("handle", f), wrapper.reset):
        with pytest.raises(NotImplementedError):
            call("loss")
    with pytest.raises(ValueError, match="wrap a MonitoredSession"):
        wrapper.should_stop()
    wrapper.close()
    assert session.closed


def test_should_stop_is_that_of_a_monitored_session():
    """C6."""
    with tt.MonitoredSession(linear_session(), hooks=[tt.StopAtStepHook(last_step=2)]) as monitored:
        wrapper = Wrapper(monitored)
        while not wrapper.should_stop():
            wrapper.run("loss")
    assert wrapper.run_call_count == 2


def test_entering_makes_the_wrapper_the_default_session_and_leaving_does_not_close():
    """C4."""
    session = linear_session()
    with Wrapper(session) as wrapper:
        assert tt.get_default_session() is wrapper
        with wrapper.as_default():
            tt.get_default_session().run("loss")
    assert tt.get_default_session() is None
    assert len(wrapper.starts) == 1
    assert not session.closed


def test_collecting_the_wrapper_does_not_close_the_session():
    """C18, X2."""
    session = linear_session()
    wrapper = Wrapper(session)
    del wrapper
    gc.collect()
    session.run("loss")


# --- running ---------------------------------------------------------------------------------------


def test_what_is_asked_before_and_after_a_run():
    """C7, C13."""
    session = CounterSession()
    wrapper = Wrapper(session)
    options, metadata = RunOptions(), RunMetadata()
    assert wrapper.run("y", {"x": 4}, options, metadata) == 8
    (start,) = wrapper.starts
    assert (start.fetches, start.feed_dict, start.run_call_count) == ("y", {"x": 4}, 1)
    assert start.run_options is options
    assert start.run_metadata is metadata
    assert start.is_callable_runner is False
    assert [end.performed_action for end in wrapper.ends] == ["non_debug_run"]
    assert session.options == [options]


@pytest.mark.parametrize("fetches", [[], (), {}, [[], {"a": ()}]], ids=str)
def test_empty_fetches_pass_through_but_count(fetches):
    """C7, C8."""
    wrapper = Wrapper(CounterSession())
    assert wrapper.run(fetches) == fetches
    assert wrapper.run_call_count == 1
    assert wrapper.starts == []


def test_threads_that_are_filtered_out_pass_through_but_count():
    """C8, C9: matched at the start of the thread's name."""
    wrapper = Wrapper(CounterSession(), "worker")
    threads = [threading.Thread(target=wrapper.run, args=("y",), name=n) for n in ("worker-1", "a-worker")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrapper.run_call_count == 2
    assert len(wrapper.starts) == 1
    with pytest.raises(ValueError, match="thread_name_filter"):
        Wrapper(CounterSession(), "(")


def test_bad_answers_before_and_after_a_run():
    """C10, C14."""
    with pytest.raises(ValueError, match="Invalid OnRunStartAction value: 'dance'"):
        Wrapper(CounterSession(), start=OnRunStartResponse("dance", [])).run("y")
    with pytest.raises(TypeError, match="on_run_start must return"):
        Wrapper(CounterSession(), start="debug_run").run("y")
    with pytest.raises(TypeError, match="on_run_end must return"):
        Wrapper(CounterSession(), end="done").run("y")
    with pytest.raises(TypeError, match="debug_urls must be a list"):
        OnRunStartResponse(OnRunStartAction.DEBUG_RUN, "file:///tmp/run")


def test_a_debug_run_watches_everything(records):
    """C11."""
    wrapper = debugging(linear_session())
    options = RunOptions()
    loss = wrapper.run("loss", options=options)
    keys = {each.watch_key for each in records}
    assert {"model/addmm:0:DebugIdentity", "model/weight:0:DebugIdentity"} <= keys
    (end,) = wrapper.ends
    assert end.performed_action == "debug_run"
    assert "model/addmm" in {node.name for node in end.run_metadata.nodes}
    assert end.client_graph_def.node
    assert end.tf_error is None
    assert options.debug_options.debug_tensor_watch_opts == [], "the caller's options stay the caller's"
    assert loss == pytest.approx(float(linear_session().run("loss")))


def test_op_errors_are_captured_and_returned_by_default(records, caplog):
    """C12, X4: documented, so kept, with a warning that says it."""
    wrapper = debugging(failing_session())
    error = wrapper.run("z", {"x": X})
    assert isinstance(error, OpError)
    assert wrapper.ends[0].tf_error is error
    assert "pass_through_operrors=True" in caplog.text
    assert error.node_name in caplog.text
    assert {"add", "mul"} <= {each.node_name for each in records}, "what ran before the failure is there"


def test_op_errors_can_be_passed_through(records):
    """C12: then on_run_end is not called."""
    wrapper = debugging(failing_session(), pass_through_operrors=True)
    with pytest.raises(OpError):
        wrapper.run("z", {"x": X})
    assert wrapper.ends == []


def test_other_errors_always_propagate(records):
    """C12."""

    def step(x):
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        debugging(tt.torch.Session(step)).run(None, {"x": X})


def test_a_profile_run_traces_fully_and_its_errors_propagate():
    """C13."""
    session = CounterSession(failures=[None, InvalidArgumentError(None, "bad")])
    wrapper = Wrapper(session, start=OnRunStartResponse(OnRunStartAction.PROFILE_RUN, []))
    wrapper.run("y")
    assert session.options[0].trace_level == TraceLevel.FULL_TRACE
    assert wrapper.ends[0].run_metadata.step_stats == "stats of step 1"
    with pytest.raises(InvalidArgumentError):
        wrapper.run("y")


def test_there_is_no_stepper_here():
    """C10, C43."""
    wrapper = Wrapper(CounterSession(), start=OnRunStartResponse(OnRunStartAction.INVOKE_STEPPER, []))
    with pytest.raises(NotImplementedError, match="Wrapper has no node stepper"):
        wrapper.run("y")


def test_callables_go_through_the_wrapper(records):
    """C15, C16."""
    wrapper = debugging(linear_session())
    call = wrapper.make_callable("loss", feed_list=["x"], accept_options=True)
    metadata = RunMetadata()
    call(X, run_metadata=metadata)
    (start,) = wrapper.starts
    assert (start.fetches, start.feed_dict, start.is_callable_runner) == (None, None, True)
    assert records
    assert metadata.nodes
    with pytest.raises(TypeError, match="accept_options=True"):
        wrapper.make_callable("loss", ["x"])(X, options=RunOptions())
    for both in ({"fetches": "loss"}, {"feed_dict": {"x": X}}):
        with pytest.raises(ValueError, match="both of them must be None"):
            wrapper.run(**{"fetches": None, **both}, callable_runner=call)


def test_callables_of_a_monitored_session(records):
    with tt.MonitoredSession(linear_session()) as monitored:
        assert debugging(monitored).make_callable("loss", ["x"])(X) > 0
    assert records


def test_a_step_function_gets_the_wrapped_session_and_watched_runs():
    """C17."""
    session = CounterSession()
    wrapper = Wrapper(session)
    seen = []

    def step_fn(step_context):
        seen.append(step_context.session)
        return step_context.run_with_hooks("y", {"x": 3})

    assert wrapper.run_step_fn(step_fn) == 6
    assert seen == [session]
    assert len(wrapper.starts) == 1
    with pytest.raises(ValueError, match="step_context"):
        wrapper.run_step_fn(lambda x: x)


def test_concurrent_runs_are_counted_one_by_one():
    wrapper = Wrapper(CounterSession())
    threads = [threading.Thread(target=lambda: [wrapper.run("y") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(start.run_call_count for start in wrapper.starts) == list(range(1, 201))


def test_watching_changes_no_value(records):
    plain, watched = (
        linear_session(),
        debugging(linear_session(), ops=["DebugIdentity", "DebugNumericSummary"]),
    )
    for _ in range(3):
        assert plain.run("loss") == watched.run("loss")
    assert torch.equal(*(torch.from_numpy(each.run("model/weight:0")) for each in (plain, watched.session)))
