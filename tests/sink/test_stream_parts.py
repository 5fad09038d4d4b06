"""The parts of streaming that have no threads: room, books, back-off, the course of a stream, its turn, its replies."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensortap.sink.base import Counts
from tensortap.sink.parcel import PARCEL_BYTES, PARCEL_ITEMS
from tensortap.sink.reasons import QUEUE_FULL, STALLED, UNREACHABLE
from tensortap.sink.room import Room
from tensortap.sink.stream.account import Account
from tensortap.sink.stream.availability import ANOTHER_ATTEMPT_SECS, Availability
from tensortap.sink.stream.course import Course
from tensortap.sink.stream.lineup import Lineup
from tensortap.sink.stream.outbox import Outbox
from tensortap.sink.stream.questions import Question, Replies
from tensortap.sink.stream_options import StreamOptions
from tests.patience import patient

SIZES = st.tuples(st.integers(1, 50), st.integers(0, 500), st.integers(1, 120))


# --- room and accounts -----------------------------------------------------------------------------


class Rooms(RuleBasedStateMachine):
    """Several runs share a room: it is bounded, and every record is counted once, whatever happens to its run."""

    def __init__(self):
        super().__init__()
        self.changed, self.room, self.total = threading.Condition(), Room(200), Counts()
        self.runs, self.offered = [], 0

    @rule()
    def begin(self):
        counts = Counts()
        account = Account(self.room, counts, self.total)
        self.runs.append({"account": account, "counts": counts, "held": [], "is_over": False})

    def pick(self, data, is_over=None):
        return data.draw(
            st.sampled_from([run for run in self.runs if is_over is None or run["is_over"] == is_over])
        )

    @precondition(lambda self: any(not run["is_over"] for run in self.runs))
    @rule(data=st.data(), size=SIZES)
    def take(self, data, size):
        run = self.pick(data, is_over=False)
        was_empty = self.room.used_bytes == 0
        with self.changed:
            fits = self.room.wait_for(size[2], self.changed, 0.0)
        assert fits == (was_empty or self.room.used_bytes + size[2] <= 200)
        self.offered += size[0]
        if fits:
            run["account"].take(size)
            run["held"].append(size[2])
        else:
            run["account"].refuse(QUEUE_FULL, size[0])

    @precondition(lambda self: any(run["held"] for run in self.runs))
    @rule(data=st.data())
    def release(self, data):
        """Also what a run that was lost meanwhile had given to gRPC: it holds nothing any more."""
        run = data.draw(st.sampled_from([run for run in self.runs if run["held"]]))
        run["account"].release(run["held"].pop(0))

    @precondition(lambda self: any(not run["is_over"] for run in self.runs))
    @rule(data=st.data(), kept=st.none() | st.integers(0, 100))
    def arrive(self, data, kept):
        run = self.pick(data, is_over=False)
        run["account"].arrive(kept)
        run["is_over"] = True

    @precondition(lambda self: any(not run["is_over"] for run in self.runs))
    @rule(data=st.data())
    def lose(self, data):
        run = self.pick(data, is_over=False)
        run["account"].lose("connection lost")
        run["is_over"] = True

    @invariant()
    def room_is_what_the_living_hold(self):
        assert self.room.used_bytes == sum(sum(run["held"]) for run in self.runs if not run["is_over"])

    @invariant()
    def books_balance(self):
        assert self.total.written == sum(run["counts"].written for run in self.runs)
        assert self.total.lost == sum(run["counts"].lost for run in self.runs)
        if all(run["is_over"] for run in self.runs):
            assert self.total.written + self.total.lost == self.offered


TestRooms = Rooms.TestCase


def test_a_room_that_nobody_empties_costs_the_wait_once():
    room, changed = Room(100), threading.Condition()
    room.take(100)
    with changed:
        assert not room.wait_for(1, changed, 0.01)
        assert room.is_stalled
        assert not room.wait_for(1, changed, 3600), "not again"
        room.give_back(10)
        assert not room.is_stalled
        assert room.wait_for(10, changed, 0)
        assert not room.wait_for(11, changed, 3600, is_hopeless=lambda: True)
        assert not room.is_stalled, "nobody has waited"


# --- the outbox ------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 400), max_size=60), st.integers(1, 2000))
def test_what_an_outbox_takes_comes_out_once_and_in_order(weights, bound):
    changed, room, counts = threading.Condition(), Room(bound), Counts()
    outbox = Outbox(changed, room, Account(room, counts))
    accepted = [number for number, weight in enumerate(weights) if outbox.put(number, (1, 1, weight)) is None]
    with changed:
        outbox.close()
    taken = []
    while (parcel := outbox.take()) is not None:
        taken += parcel.items
        outbox.release(parcel.weight)
    assert taken == accepted
    assert room.used_bytes == 0
    assert counts.dropped == ({QUEUE_FULL: len(weights) - len(taken)} if len(taken) < len(weights) else {})


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda outbox: outbox.put("large", (1, 1, PARCEL_BYTES)), id="large"),
        pytest.param(
            lambda outbox: [outbox.put(number, (1, 1, 1)) for number in range(PARCEL_ITEMS)], id="many"
        ),
        pytest.param(lambda outbox: outbox.put("urgent", (1, 1, 1), is_urgent=True), id="urgent"),
        pytest.param(lambda outbox: outbox.put("old", (1, 1, 1)), id="old"),
    ],
)
def test_a_parcel_leaves_when_it_is_large_urgent_or_old(put):
    changed, room = threading.Condition(), Room(PARCEL_BYTES)
    outbox = Outbox(changed, room, Account(room))
    parcels = []
    taker = threading.Thread(target=lambda: parcels.append(outbox.take()))
    taker.start()
    put(outbox)
    taker.join(patient(10))
    assert parcels[0].items


def test_an_outbox_that_is_given_up_lets_everybody_go():
    changed, room, counts = threading.Condition(), Room(10), Counts()
    account = Account(room, counts)
    outbox = Outbox(changed, room, account)
    assert outbox.put("a", (1, 1, 10)) is None
    refused = []
    waiting = threading.Thread(target=lambda: refused.append(outbox.put("b", (2, 2, 10), 3600)))
    waiting.start()
    with changed:
        account.lose("connection lost")
        assert outbox.give_up("connection lost") == ["a"]
    waiting.join(patient(10))
    assert refused == ["connection lost"] or (refused == [None] and counts.dropped == {"connection lost": 1})
    assert outbox.put("c", (1, 1, 1)) == "connection lost"
    assert outbox.take() is None


# --- back-off --------------------------------------------------------------------------------------

EVENTS = st.lists(st.tuples(st.sampled_from(["failed", "answered", "lost", "wait"]), st.floats(0, 50)))


@given(EVENTS, st.floats(0.01, 10), st.floats(0.01, 60))
def test_pauses_double_up_to_the_longest_and_begin_anew_with_an_answer(events, first, longest):
    options = StreamOptions(retry_secs=first, max_retry_secs=longest)
    server, now, failures, down_until = Availability(), 100.0, 0, 0.0
    for event, secs in events:
        now += secs
        if event == "failed":
            pause = server.failed(now, options)
            assert pause == min(first * 2.0**failures, longest)
            failures, down_until = failures + 1, now + pause
        elif event == "answered":
            server.answered("one", takes_batches=True)
            failures, down_until = 0, 0.0
        elif event == "lost":
            server.lost()
        assert server.is_down(now) == (now < down_until)
        assert server.is_answering == (event == "answered") or event == "wait"
        limit = options.connect_timeout_secs
        assert server.connect_timeout(options) == (min(limit, ANOTHER_ATTEMPT_SECS) if failures else limit)


def test_a_server_down_for_days_does_not_overflow():
    server, options = Availability(), StreamOptions()
    assert {server.failed(0.0, options) for _ in range(5000)} == {1.0, 2.0, 4.0, 8.0, 16.0, 30.0}


def test_another_server_at_the_same_address_is_noticed():
    server = Availability()
    assert [server.answered(each, True) for each in ("a", "a", "b")] == [True, False, True]


# --- the course of a stream ------------------------------------------------------------------------


class Courses(RuleBasedStateMachine):
    """Whatever happens, no record is sent twice: one attempt sends at most, or the disk, and a stream ends once."""

    def __init__(self):
        super().__init__()
        self.course, self.now = Course(), 0.0
        self.attempts, self.senders, self.ends = [], 0, 0

    @rule(secs=st.floats(0, 5))
    def time_passes(self, secs):
        self.now += secs

    @precondition(lambda self: self.course.can_begin_again)
    @rule()
    def attempt(self):
        self.attempts.append(self.course.attempt(self.now))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def begin(self, data):
        """In gRPC's thread, perhaps long after the attempt was given up."""
        attempt = data.draw(st.sampled_from(self.attempts))
        begun = self.course.begin(attempt)
        assert not begun or attempt == max(self.attempts)
        self.senders += begun

    @rule()
    def retire(self):
        could = self.course.can_begin_again
        assert self.course.retire() == could

    @rule()
    def divert(self):
        self.senders += self.course.divert()

    @rule(reason=st.sampled_from([None, "connection lost"]))
    def end(self, reason):
        ended = self.course.end(reason)
        self.ends += ended
        assert not ended or self.course.lost_because == reason

    @invariant()
    def is_sent_once(self):
        assert self.senders <= 1
        assert self.ends <= 1
        assert self.course.can_begin_again == (self.senders == 0 and not self.course.is_over)


TestCourses = Courses.TestCase


def test_a_stream_is_overdue_when_nobody_answers_or_takes_anything():
    course = Course()
    limits = {"connect_secs": 2.0, "stall_secs": 5.0}
    assert course.overdue(1e9, **limits) is None, "it has not begun"
    course.attempt(10.0)
    assert course.overdue(12.0, **limits) is None
    assert course.overdue(12.1, **limits) == UNREACHABLE
    course.retire()
    course.attempt(11.9)
    assert course.overdue(12.1, **limits) == UNREACHABLE, "another attempt gives no more time"
    course.answer(12.0)
    assert course.overdue(1e9, **limits) is None, "the run makes no records at the moment"
    course.hand_over(20.0)
    assert course.overdue(25.1, **limits) == STALLED
    course.taken(25.2)
    assert course.overdue(1e9, **limits) is None
    course.complete(30.0)
    assert course.overdue(35.1, **limits) == STALLED, "it should have confirmed"


# --- whose turn it is ------------------------------------------------------------------------------


@dataclass(eq=False)
class Turn:
    number: int
    is_ended: bool = False
    is_out_of_the_way: bool = False
    can_begin_again: bool = True


class Turns(RuleBasedStateMachine):
    """Streams begin in the order of their runs, few at once, and none is forgotten."""

    MOST = 3

    def __init__(self):
        super().__init__()
        self.lineup, self.made, self.begun, self.gone = Lineup(self.MOST), [], [], set()

    @rule()
    def add(self):
        self.made.append(Turn(len(self.made)))
        self.lineup.add(self.made[-1])

    @rule(is_answering=st.booleans())
    def begin(self, is_answering):
        before = self.lineup.active
        found = self.lineup.next(is_answering)
        if found is None:
            return
        assert len(before) < self.MOST
        assert is_answering or not before
        assert all(turn.is_out_of_the_way or not turn.is_ended for turn in before)
        assert all(turn.number < found.number for turn in before)

    @precondition(lambda self: self.lineup.active)
    @rule(data=st.data(), what=st.sampled_from(["is_ended", "is_out_of_the_way", "begins"]))
    def goes_on(self, data, what):
        turn = data.draw(st.sampled_from(self.lineup.active))
        if what == "begins":
            turn.can_begin_again = False
        else:
            setattr(turn, what, True)

    @precondition(lambda self: self.lineup.active)
    @rule(data=st.data())
    def leave(self, data):
        turn = data.draw(st.sampled_from(self.lineup.active))
        turn.can_begin_again = False
        self.lineup.leave(turn)
        self.lineup.leave(turn)
        self.gone.add(turn.number)

    @precondition(lambda self: self.lineup.active)
    @rule()
    def put_back(self):
        newest = max(self.lineup.active, key=lambda turn: turn.number)
        assert self.lineup.put_back(newest) == newest.can_begin_again

    @invariant()
    def none_is_forgotten(self):
        known = {turn.number for turn in (*self.lineup.waiting, *self.lineup.active)}
        assert known | self.gone == set(range(len(self.made)))
        assert self.lineup.has_ended_runs == any(
            turn.is_ended for turn in (*self.lineup.waiting, *self.lineup.active)
        )


TestTurns = Turns.TestCase


def test_those_given_up_while_they_wait_are_under_way_until_they_leave():
    lineup = Lineup(1)
    turns = [Turn(number, is_ended=True) for number in range(3)]
    for turn in turns:
        lineup.add(turn)
    assert lineup.give_up_waiting() == turns
    for turn in turns:
        assert lineup.has_ended_runs
        lineup.leave(turn)
    assert lineup.is_empty


# --- replies ---------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 25))
def test_each_question_gets_the_reply_that_is_its_own(questions, replies):
    """The server replies to everything that is expected, in order, and may end before the last."""
    expected = Replies()
    asked = [Question(None) if is_question else None for is_question in questions]
    for question in asked:
        expected.expect(question)
    for number in range(replies):
        expected.take(number)
    expected.settle_all()
    for number, question in enumerate(asked):
        if question is not None:
            assert question.wait(0), "nobody waits for good"
            assert question.reply == (number if number < replies else None)


def test_no_reply_is_taken_for_an_answer_once_one_was_late():
    replies, question = Replies(), Question(None)
    replies.expect(question)
    replies.is_out_of_step = True
    replies.take("late")
    assert question.wait(0)
    assert question.reply is None
