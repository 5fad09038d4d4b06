"""Scenarios that drive one logging hook through a monitored session; the world says whose session.

A scenario is a function of a world. It returns nothing: what happened is in `world.log`. Nothing here imports
tensortap or TensorFlow, because the same file is used in both processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SCENARIOS: dict[str, Callable[[Any], None]] = {}


def scenario(function: Callable[[Any], None]) -> Callable[[Any], None]:
    SCENARIOS[function.__name__] = function
    return function


def play(name: str, world: Any) -> list[str]:
    """Run one scenario; an exception that leaves it is the last entry of the log."""
    try:
        SCENARIOS[name](world)
    except Exception as error:
        world.log.append(f"raised:{type(error).__name__}")
    return world.log


class Hook:
    """Logs every call; `plan` gives, per moment, what to do in successive calls.

    An action is None, an exception to raise, or a function of the arguments of the moment.
    Worlds mix this with their own hook base class.
    """

    def __init__(
        self, world: Any, name: str = "a", plan: Mapping[str, list[Any]] | None = None, request: Any = None
    ) -> None:
        self.world = world
        self.name = name
        self.plan = {moment: iter(actions) for moment, actions in (plan or {}).items()}
        self.request = request

    def _called(self, moment: str, *args: Any, note: str = "") -> None:
        self.world.log.append(f"{self.name}.{moment}{note}")
        action = next(self.plan.get(moment, iter(())), None)
        if isinstance(action, Exception):
            raise action
        if action is not None:
            action(*args)

    def begin(self) -> None:
        self._called("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.coord = coord
        self._called("after_create_session", session, coord)

    def before_run(self, run_context: Any) -> Any:
        self._called("before_run", run_context)
        return self.request

    def after_run(self, run_context: Any, run_values: Any) -> None:
        note = "" if run_values.results is None else f":{plain(run_values.results)}"
        self._called("after_run", run_context, run_values, note=note)

    def end(self, session: Any) -> None:
        self._called("end", session, note="" if session is not None else ":no session")


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return None if value is None else int(value)


@contextmanager
def caught(world: Any) -> Iterator[None]:
    """Log an exception and go on."""
    try:
        yield
    except Exception as error:
        world.log.append(f"raised:{type(error).__name__}")


def run(world: Any, session: Any, **kwargs: Any) -> None:
    world.log.append(f"returned:{plain(session.run(world.step, **kwargs))}")


def should_stop(world: Any, session: Any) -> None:
    world.log.append(f"should_stop:{session.should_stop()}")


def fail_in_thread(coord: Any, error: Exception) -> None:
    """Report an error to the coordinator the way a worker thread does."""

    def work() -> None:
        with coord.stop_on_exception():
            raise error

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def one_failure(moment: str, make_error: Callable[[Any], Exception], who: str = "a") -> Callable[[Any], None]:
    """Two hooks, two runs, one planted failure."""

    def body(world: Any) -> None:
        plan = {moment: [make_error(world)]}
        if moment in ("before_run", "after_run"):
            plan = {moment: [None, make_error(world)]}
        hooks = [
            world.hook("a", plan if who == "a" else None),
            world.hook("b", plan if who == "b" else None),
        ]
        engine = [None, make_error(world)] if moment == "engine" else []
        create = [make_error(world)] if moment == "create" else []
        close = make_error(world) if moment == "close" else None
        with world.monitored(hooks, engine=engine, create=create, close_error=close) as session:
            run(world, session)
            run(world, session)
            should_stop(world, session)
        world.log.append("after the block")

    return body


ERRORS: dict[str, Callable[[Any], Exception]] = {
    "value_error": lambda world: ValueError("planted"),
    "out_of_range": lambda world: world.out_of_range(),
    "stop_iteration": lambda world: StopIteration("planted"),
    "aborted": lambda world: world.aborted(),
    "unavailable": lambda world: world.unavailable(),
}
for _moment in (
    "begin",
    "create",
    "after_create_session",
    "before_run",
    "engine",
    "after_run",
    "end",
    "close",
):
    for _kind, _make in ERRORS.items():
        SCENARIOS[f"{_kind}_in_{_moment}"] = one_failure(_moment, _make)
for _moment in ("begin", "after_create_session", "before_run", "after_run", "end"):
    for _kind in ("value_error", "aborted"):
        SCENARIOS[f"{_kind}_in_{_moment}_of_second_hook"] = one_failure(_moment, ERRORS[_kind], who="b")


# --- one run --------------------------------------------------------------------------------------


@scenario
def no_hooks(world: Any) -> None:
    with world.monitored(None) as session:
        run(world, session)
        should_stop(world, session)


@scenario
def two_hooks_two_runs(world: Any) -> None:
    with world.monitored([world.hook("a"), world.hook("b")]) as session:
        run(world, session)
        run(world, session)


@scenario
def graph_is_open_in_begin_and_final_later(world: Any) -> None:
    def note(*args: Any) -> None:
        world.log.append(f"finalized:{world.graph.finalized}")

    moments = ("begin", "after_create_session", "before_run", "after_run", "end")
    with world.monitored([world.hook("a", {moment: [note] for moment in moments})]) as session:
        run(world, session)
    note()


@scenario
def same_hook_listed_twice(world: Any) -> None:
    hook = world.hook("a")
    with world.monitored([hook, hook]) as session:
        run(world, session)


@scenario
def same_hook_listed_twice_with_different_requests(world: Any) -> None:
    hook = world.hook("a")

    def ask_for(fetches: Any) -> Callable[..., None]:
        return lambda context: setattr(hook, "request", world.args(fetches))

    hook.plan["before_run"] = iter([ask_for([world.y]), ask_for({"z": world.z})])
    with world.monitored([hook, hook]) as session:
        run(world, session)


@scenario
def hooks_from_a_generator(world: Any) -> None:
    with world.monitored(each for each in [world.hook("a")]) as session:
        run(world, session)


@scenario
def results_have_the_structure_asked_for(world: Any) -> None:
    hooks = [
        world.hook("a", request=world.args(world.y)),
        world.hook("b", request=world.args({"first": [world.y, world.z], "second": world.y})),
        world.hook("c", request=world.args(None)),
        world.hook("d"),
    ]
    with world.monitored(hooks) as session:
        run(world, session)


@scenario
def context_is_shared_and_tells_the_callers_request(world: Any) -> None:
    seen = []

    def note(context: Any, *rest: Any) -> None:
        seen.append(context)
        args = context.original_args
        world.log.append(f"asked:{args.fetches is world.step} {plain(dict(args.feed_dict).popitem()[1])}")
        world.log.append(f"options:{args.options} raw:{context.session is world.raw}")

    plan = {"before_run": [note], "after_run": [note]}
    with world.monitored([world.hook("a", plan), world.hook("b", plan)]) as session:
        run(world, session, feed_dict={world.x: 3})
    world.log.append(f"contexts:{len({id(each) for each in seen})}")


@scenario
def feeds_of_two_hooks_and_the_caller_are_joined(world: Any) -> None:
    hooks = [world.hook("a", request=world.args([world.y, world.z], {world.z: 5})), world.hook("b")]
    feeds = {world.x: 4}
    with world.monitored(hooks) as session:
        run(world, session, feed_dict=feeds)
    world.log.append(f"feeds:{len(feeds)}")


@scenario
def hook_feeds_without_fetches(world: Any) -> None:
    hooks = [
        world.hook("a", request=world.args(None, {world.x: 7})),
        world.hook("b", request=world.args(world.y)),
    ]
    with world.monitored(hooks) as session:
        run(world, session)


@scenario
def two_hooks_feed_the_same(world: Any) -> None:
    hooks = [world.hook(name, request=world.args(None, {world.x: 1})) for name in "ab"]
    with world.monitored(hooks) as session:
        run(world, session)


@scenario
def hook_and_caller_feed_the_same(world: Any) -> None:
    with world.monitored([world.hook("a", request=world.args(None, {world.x: 1}))]) as session:
        run(world, session, feed_dict={world.x: 1})


@scenario
def hook_and_caller_feed_the_same_in_two_spellings(world: Any) -> None:
    with world.monitored([world.hook("a", request=world.args(world.y, {world.x: 1}))]) as session:
        run(world, session, feed_dict={world.x_spelled_otherwise: 2})


# --- stopping -------------------------------------------------------------------------------------


@scenario
def stop_requested_in_after_run(world: Any) -> None:
    hook = world.hook("a", {"after_run": [None, lambda context, values: context.request_stop()]})
    with world.monitored([hook, world.hook("b")]) as session:
        run(world, session)
        should_stop(world, session)
        run(world, session)
        should_stop(world, session)
        with caught(world):
            run(world, session)


@scenario
def stop_requested_in_before_run(world: Any) -> None:
    with world.monitored([world.hook("a", {"before_run": [lambda c: c.request_stop()]})]) as session:
        run(world, session)
        should_stop(world, session)


@scenario
def stop_requested_and_error_in_the_same_run(world: Any) -> None:
    plan = {"before_run": [lambda context: context.request_stop()], "after_run": [ValueError("planted")]}
    with world.monitored([world.hook("a", plan)]) as session:
        with caught(world):
            run(world, session)
        should_stop(world, session)


@scenario
def stop_request_is_forgotten_by_recovery(world: Any) -> None:
    hook = world.hook("a", {"after_run": [lambda context, values: context.request_stop()]})
    with world.monitored([hook]) as session:
        run(world, session)
        fail_in_thread(hook.coord, world.aborted())
        should_stop(world, session)
        run(world, session)
        should_stop(world, session)


# --- leaving the block ----------------------------------------------------------------------------


def leave_by(make_error: Callable[[Any], Exception]) -> Callable[[Any], None]:
    def body(world: Any) -> None:
        with world.monitored([world.hook("a"), world.hook("b")]) as session:
            run(world, session)
            raise make_error(world)
        world.log.append("after the block")

    return body


for _kind, _make in ERRORS.items():
    SCENARIOS[f"{_kind}_in_the_body"] = leave_by(_make)
SCENARIOS["subclass_of_stop_iteration_in_the_body"] = leave_by(
    lambda world: type("EndOfData", (StopIteration,), {})("planted")
)
SCENARIOS["subclass_of_out_of_range_in_the_body"] = leave_by(
    lambda world: world.subclassed(world.out_of_range(), "EndOfData")
)


@scenario
def explicit_close(world: Any) -> None:
    session = world.monitored([world.hook("a"), world.hook("b")])
    run(world, session)
    session.close()
    should_stop(world, session)
    world.log.append(f"graph:{session.graph}")


@scenario
def run_after_close(world: Any) -> None:
    session = world.monitored([world.hook("a")])
    session.close()
    run(world, session)


@scenario
def close_twice(world: Any) -> None:
    session = world.monitored([world.hook("a")])
    session.close()
    session.close()


@scenario
def close_inside_the_block(world: Any) -> None:
    with world.monitored([world.hook("a")]) as session:
        run(world, session)
        session.close()
    world.log.append("after the block")


# --- recovery -------------------------------------------------------------------------------------


@scenario
def three_preemptions_in_a_row(world: Any) -> None:
    engine = [world.aborted(), world.unavailable(), world.aborted()]
    with world.monitored([world.hook("a")], engine=engine) as session:
        run(world, session)
        run(world, session)


@scenario
def state_starts_anew_without_a_checkpoint(world: Any) -> None:
    with world.monitored([world.hook("a")], engine=[None, None, world.aborted()]) as session:
        run(world, session)
        run(world, session)
        run(world, session)


@scenario
def preemption_while_recovering(world: Any) -> None:
    plan = {"after_create_session": [None, world.aborted()]}
    with world.monitored([world.hook("a", plan), world.hook("b")], engine=[world.aborted()]) as session:
        run(world, session)


# --- checkpoints ----------------------------------------------------------------------------------


def four_runs(world: Any, hooks: list[Any], bad: int | None = None) -> None:
    """Four runs with a checkpoint directory, the loss of one of them NaN; notes what was saved."""
    try:
        with world.checkpointed(hooks) as session:
            for number in range(1, 5):
                run(world, session, feed_dict={world.x: -1 if number == bad else 1})
    finally:
        world.log.append(f"saved:{world.saved()}")


def failing(world: Any, error: Exception) -> Any:
    return world.hook("a", {"after_run": [None, error]})


@scenario
def checkpoint_of_every_step(world: Any) -> None:
    four_runs(world, [world.saver()])


@scenario
def nan_found_ahead_of_the_saver(world: Any) -> None:
    four_runs(world, [world.nan_hook(), world.saver()], bad=3)


@scenario
def nan_found_after_the_saver(world: Any) -> None:
    four_runs(world, [world.saver(), world.nan_hook()], bad=3)


@scenario
def aborted_ahead_of_the_saver(world: Any) -> None:
    four_runs(world, [failing(world, world.aborted()), world.saver()])


@scenario
def aborted_after_the_saver(world: Any) -> None:
    four_runs(world, [world.saver(), failing(world, world.aborted())])


@scenario
def value_error_ahead_of_the_saver(world: Any) -> None:
    four_runs(world, [failing(world, ValueError("planted")), world.saver()])


@scenario
def value_error_after_the_saver(world: Any) -> None:
    four_runs(world, [world.saver(), failing(world, ValueError("planted"))])


@scenario
def input_ends_ahead_of_the_saver(world: Any) -> None:
    four_runs(world, [failing(world, world.out_of_range()), world.saver()])


# --- step functions -------------------------------------------------------------------------------


@scenario
def step_function_mixes_raw_and_hooked_runs(world: Any) -> None:
    def step(step_context: Any) -> str:
        world.log.append(f"raw:{plain(step_context.session.run(world.step))}")
        world.log.append(f"hooked:{plain(step_context.run_with_hooks(world.step))}")
        world.log.append(
            f"hooked:{plain(step_context.run_with_hooks(fetches=world.step, feed_dict={world.x: 2}))}"
        )
        return "done"

    with world.monitored([world.hook("a")]) as session:
        world.log.append(session.run_step_fn(step))


@scenario
def step_function_as_bound_method(world: Any) -> None:
    class Trainer:
        def step(self, step_context: Any) -> int:
            return plain(step_context.run_with_hooks(world.step))

    with world.monitored([world.hook("a")]) as session:
        world.log.append(f"returned:{session.run_step_fn(Trainer().step)}")


@scenario
def step_functions_with_wrong_arguments(world: Any) -> None:
    with world.monitored([world.hook("a")]) as session:
        for wrong in (
            lambda: 1,
            lambda context: 1,
            lambda step_context, more: 1,
            lambda self, context: 1,
            "not a function",
            None,
        ):
            with caught(world):
                session.run_step_fn(wrong)


@scenario
def step_function_stops_in_a_block(world: Any) -> None:
    with world.monitored([world.hook("a")]) as session:
        while not session.should_stop():
            run(world, session)
            session.run_step_fn(lambda step_context: step_context.request_stop())
    world.log.append("after the block")


@scenario
def step_function_stops_without_a_block(world: Any) -> None:
    session = world.monitored([world.hook("a")])
    with caught(world):
        session.run_step_fn(lambda step_context: step_context.request_stop())
    should_stop(world, session)
    session.close()


@scenario
def step_function_is_repeated_after_a_preemption(world: Any) -> None:
    def step(step_context: Any) -> int:
        world.log.append("step")
        return plain(step_context.run_with_hooks(world.step))

    with world.monitored([world.hook("a")], engine=[world.aborted()]) as session:
        world.log.append(f"returned:{session.run_step_fn(step)}")


@scenario
def step_function_raises_preemption_itself(world: Any) -> None:
    failures = iter([world.unavailable()])

    def step(step_context: Any) -> str:
        world.log.append("step")
        for failure in failures:
            raise failure
        return "done"

    with world.monitored([world.hook("a")]) as session:
        world.log.append(session.run_step_fn(step))


@scenario
def raw_session_of_a_step_function_after_recovery(world: Any) -> None:
    def step(step_context: Any) -> bool:
        step_context.run_with_hooks(world.step)
        return step_context.session is world.raw

    with world.monitored([], engine=[world.aborted()]) as session:
        world.log.append(f"current:{session.run_step_fn(step)}")


@scenario
def hook_fails_inside_a_step_function(world: Any) -> None:
    with world.monitored([world.hook("a", {"after_run": [ValueError("planted")]})]) as session:
        session.run_step_fn(lambda step_context: step_context.run_with_hooks(world.step))


@scenario
def step_function_runs_after_stop(world: Any) -> None:
    hook = world.hook("a", {"after_run": [lambda context, values: context.request_stop()]})
    with world.monitored([hook]) as session:
        run(world, session)
        world.log.append(session.run_step_fn(lambda step_context: "still called"))
        with caught(world):
            session.run_step_fn(lambda step_context: step_context.run_with_hooks(world.step))


# --- threads --------------------------------------------------------------------------------------


def thread_fails(make_error: Callable[[Any], Exception]) -> Callable[[Any], None]:
    def body(world: Any) -> None:
        hook = world.hook("a")
        with world.monitored([hook]) as session:
            run(world, session)
            fail_in_thread(hook.coord, make_error(world))
            run(world, session)
            should_stop(world, session)
            run(world, session)
        world.log.append("after the block")

    return body


for _kind, _make in ERRORS.items():
    SCENARIOS[f"{_kind}_in_a_thread"] = thread_fails(_make)


@scenario
def thread_asks_to_stop(world: Any) -> None:
    hook = world.hook("a")
    with world.monitored([hook]) as session:
        hook.coord.request_stop()
        should_stop(world, session)
        run(world, session)


@scenario
def preemption_in_a_thread_not_seen_before_the_end(world: Any) -> None:
    hook = world.hook("a")
    with world.monitored([hook]) as session:
        fail_in_thread(hook.coord, world.aborted())
        run(world, session)
    world.log.append("after the block")


@scenario
def preemption_in_a_thread_explains_a_failed_run(world: Any) -> None:
    hook = world.hook("a")

    def lose_peer() -> None:
        fail_in_thread(hook.coord, world.aborted())
        raise ValueError("a consequence")

    with world.monitored([hook], engine=[None, lose_peer]) as session:
        run(world, session)
        run(world, session)


@scenario
def other_error_in_a_thread_leaves_a_failed_run_as_it_is(world: Any) -> None:
    hook = world.hook("a")

    def fail() -> None:
        fail_in_thread(hook.coord, KeyError("thread"))
        raise ValueError("run")

    with world.monitored([hook], engine=[fail]) as session, caught(world):
        run(world, session)


@scenario
def thread_and_body_fail(world: Any) -> None:
    hook = world.hook("a")
    with world.monitored([hook]):
        fail_in_thread(hook.coord, KeyError("thread"))
        raise ValueError("body")


# --- creators of the user's -----------------------------------------------------------------------


@scenario
def built_in_hooks_with_a_creator_of_the_users(world: Any) -> None:
    with world.monitored([world.stop_at(2), world.step_counter(), world.hook("a")]) as session:
        while not session.should_stop():
            run(world, session)


def adds_a_node(world: Any) -> Any:
    """A hook that extends the graph in begin and fetches what it added in every run."""
    hook = world.hook("a")
    hook.plan["begin"] = iter([lambda: setattr(hook, "request", world.args(world.derive("more")))])
    return hook


@scenario
def creator_that_wraps_a_chief(world: Any) -> None:
    with world.wrapped([adds_a_node(world), world.stop_at(2)]) as session:
        world.log.append(f"same graph:{session.graph is world.graph}")
        while not session.should_stop():
            run(world, session)


@scenario
def node_added_in_begin_survives_a_recovery(world: Any) -> None:
    with world.monitored([adds_a_node(world)], engine=[None, world.aborted()]) as session:
        run(world, session)
        run(world, session)


@scenario
def results_are_fetched_with_and_without_a_slot(world: Any) -> None:
    with world.monitored([world.hook("a", request=world.args(["y:0", world.y]))]) as session:
        world.log.append(f"returned:{plain(session.run(['y:0', world.y], feed_dict={world.x: 3}))}")


# --- the session without recovery -----------------------------------------------------------------


@scenario
def singular_order(world: Any) -> None:
    with world.singular([world.hook("a"), world.hook("b")]) as session:
        run(world, session)
        should_stop(world, session)
        world.log.append(f"raw:{session.raw_session() is not None}")
    world.log.append(f"raw:{session.raw_session() is not None}")


def singular_failure(moment: str) -> Callable[[Any], None]:
    def body(world: Any) -> None:
        with world.singular([world.hook("a", {moment: [world.aborted()]}), world.hook("b")]) as session:
            run(world, session)

    return body


for _moment in ("begin", "after_create_session", "before_run", "after_run", "end"):
    SCENARIOS[f"singular_aborted_in_{_moment}"] = singular_failure(_moment)


@scenario
def singular_goes_on_after_a_caught_preemption(world: Any) -> None:
    with world.singular([world.hook("a", {"before_run": [world.aborted()]})]) as session:
        with caught(world):
            run(world, session)
        run(world, session)


@scenario
def singular_thread_error_is_raised_by_should_stop(world: Any) -> None:
    hook = world.hook("a")
    with world.singular([hook]) as session:
        fail_in_thread(hook.coord, KeyError("thread"))
        run(world, session)
        with caught(world):
            should_stop(world, session)


@scenario
def singular_preemption_in_a_thread(world: Any) -> None:
    hook = world.hook("a")
    with world.singular([hook]) as session:
        fail_in_thread(hook.coord, world.aborted())
        run(world, session)


@scenario
def singular_step_function(world: Any) -> None:
    with world.singular([world.hook("a")]) as session:
        result = session.run_step_fn(lambda step_context: step_context.run_with_hooks(world.step))
        world.log.append(f"returned:{plain(result)}")
        session.run_step_fn(lambda step_context: step_context.request_stop())
    world.log.append("after the block")


@scenario
def singular_close_twice(world: Any) -> None:
    session = world.singular([world.hook("a")])
    session.close()
    should_stop(world, session)
    session.close()
