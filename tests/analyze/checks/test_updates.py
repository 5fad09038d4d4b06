"""Rules are functions of records: no framework, no directory."""

from __future__ import annotations

from dataclasses import replace

from tensortap.analyze.checks import check
from tensortap.analyze.checks.evidence import Evidence
from tensortap.records import Event, Frame, Group, ParameterUpdate, Update

LINE = Frame("train.py", 9, "<module>")
WEIGHT = ParameterUpdate(
    "model/weight", (4, 4), "float32", held=("SGD",), is_reached=True, gradient=0.5, nonzero=1.0, is_stale=False,
    changed=1.0, lost=0.0, size=1.0,
)  # fmt: skip
LED = (Event("clear", "SGD"), Event("backward"), Event("step", "SGD", LINE))


def updates(number, *, events=LED, rate=0.1, parameters=None, **more):
    """So many updates of one optimizer, each with values of its own."""
    rates = rate if callable(rate) else lambda count: rate
    return [
        Update(
            count,
            "SGD",
            count,
            LINE,
            variable="optimizer",
            events=events,
            groups=(Group(rates(count), ("model/weight",)),),
            parameters=tuple(
                each._replace(mark=f"{each.name}{count}", mark_before=f"{each.name}{count - 1}")
                for each in (WEIGHT,)
            )
            if parameters is None
            else parameters(count),
            **more,
        )
        for count in range(number)
    ]


def kinds(updates):
    return {(finding.kind, finding.subject, finding.certainty) for finding in check(Evidence(0, updates, []))}


def test_a_healthy_training_is_left_alone():
    assert kinds(updates(11)) == set()


def test_what_is_not_known_is_no_reason_to_speak():
    def unknown(count):
        return (ParameterUpdate("model/weight", held=("SGD",)),)

    assert kinds(updates(11, parameters=unknown, rate=lambda count: None)) == set()
    assert kinds([Update(0, "SGD", 0)]) == set()
    assert kinds([]) == set()


def test_a_warm_up_from_zero_is_left_alone_and_a_rate_that_stays_there_is_not():
    assert kinds(updates(11, rate=lambda count: count / 10, schedule=LINE)) == set()
    assert ("learning-rate-zero", "optimizer", "sure") in kinds(updates(11, rate=0.0, schedule=LINE))
    assert kinds(updates(5, rate=0.0, schedule=LINE)) == set()
    assert ("learning-rate-zero", "optimizer", "sure") in kinds(updates(2, rate=0.0))


def test_restarts_of_a_schedule_are_no_jumps():
    def restarts(count):
        return 0.1 * (1 - count % 5 / 5) ** 4

    assert kinds(updates(11, rate=restarts)) == set()
    found = kinds(updates(11, rate=lambda count: 0.001 * 10**count))
    assert ("learning-rate-jumps", "optimizer", "likely") in found


def test_clipping_counts_where_it_is():
    clip, backward, step = Event("clip", "SGD", LINE), Event("backward"), Event("step", "SGD", LINE)
    assert kinds(updates(5, events=(backward, clip, step))) == set()
    assert ("clipped-after-step", "optimizer", "sure") in kinds(updates(5, events=(clip, backward, step)))
    other = clip._replace(who="Adam")
    assert kinds(updates(5, events=(other, backward, step))) == set()


def test_gradients_that_a_program_makes_itself_need_no_backward_pass():
    def made(count):
        return (WEIGHT._replace(gradient=0.1 * (count + 1), mark=str(count)),)

    assert kinds(updates(8, events=(Event("step", "SGD", LINE),), parameters=made)) == set()
    found = kinds(updates(8, events=(Event("step", "SGD", LINE),)))
    assert ("step-without-backward", "optimizer", "sure") in found


def test_a_closure_clears_as_it_likes():
    stale = WEIGHT._replace(is_stale=True)
    found = kinds(updates(6, parameters=lambda count: (stale,)))
    assert ("gradients-not-cleared", "optimizer", "sure") in found
    assert kinds(updates(6, parameters=lambda count: (stale,), has_closure=True)) == set()


def test_a_head_that_is_trained_alone_is_left_alone():
    def head_only(count):
        body = [ParameterUpdate(f"model/{n}", (4, 4), gradient=0.3, nonzero=1.0, mark="same") for n in "abc"]
        return (*body, WEIGHT._replace(name="model/head", mark=str(count)))

    assert kinds(updates(8, parameters=head_only)) == set()

    def all_but_one(count):
        body = [WEIGHT._replace(name=f"model/{n}", mark=f"{n}{count}") for n in "abc"]
        return (*body, ParameterUpdate("model/position", (4, 4), gradient=0.3, nonzero=1.0, mark="same"))

    assert ("not-in-optimizer", "model/position", "sure") in kinds(updates(8, parameters=all_but_one))


def test_a_rule_that_fails_finds_nothing_and_the_others_speak(monkeypatch, caplog):
    from tensortap.analyze import checks

    broken = replace(checks.RULES["stepped-twice"], find=lambda evidence: 1 / 0)
    monkeypatch.setitem(checks.RULES, "stepped-twice", broken)
    assert ("learning-rate-zero", "optimizer", "sure") in kinds(updates(2, rate=0.0))
    assert "The rule stepped-twice failed" in caplog.text
