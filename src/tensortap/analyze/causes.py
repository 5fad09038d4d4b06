"""The table of causes: what makes operations produce bad values, and how that shows in the health of their inputs.

For names of operations (without namespace and underscores, see `ops.plain_name`) the table has a function that is shown
the case and says the cause, or nothing if it is not its own. The first that speaks is believed, so special rules stand
before general ones. To teach a new cause, write a function and put it into the table `RULES` at the end.

Everything is decided from pills. Where values were recorded too, the first bad element and what it was made of
are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tensortap.analyze.case import Case
from tensortap.analyze.findings import Cause
from tensortap.analyze.health import Health, number_text
from tensortap.analyze.ops import COMMUNICATION, UNWRITTEN, plain_name

__all__ = ["RULES", "Entry"]

Rule = Callable[[Case], "Cause | None"]


def _count(number: float, of: float, what: str) -> str:
    """`3 of 24 elements are zero`, as people say it.

    >>> _count(1, 24, "zero"), _count(24, 24, "zero")
    ('1 of 24 elements is zero', 'all 24 elements are zero')
    """
    if number == of:
        return f"all {int(of)} elements are {what}" if of > 1 else f"the only element is {what}"
    return f"{int(number)} of {int(of)} elements {'is' if number == 1 else 'are'} {what}"


def _some(names: Sequence[str]) -> str:
    """`a:0`, or `3 tensors such as a:0`."""
    return names[0] if len(names) == 1 else f"{len(names)} tensors such as {names[0]}"


# --- values that came bad ------------------------------------------------------------------------------


def _arrived(case: Case) -> Cause | None:
    op_type, out = case.node.op_type, case.out
    if op_type in ("Placeholder", "Const"):
        what = "input" if op_type == "Placeholder" else "tensor made outside the step"
        unread = case.unread_before
        if unread:
            return Cause(
                "not-looked-at",
                f"What made it was not seen: {case.node.name} holds {out.bad_counts} among {int(out.elements)} "
                f"elements when it is first seen, and {_some(unread)} before it could not be looked at.",
                advice="It may be made of those, or have come bad into the step.",
            )
        return Cause(
            "bad-input",
            f"The data was bad when it came: the {what} {case.node.name} holds {out.bad_counts} among "
            f"{int(out.elements)} elements.",
            advice="Look at what makes this batch: a division in the preprocessing, an empty file, a missing value.",
        )
    if op_type.startswith("Var"):
        if case.node.name.startswith("optimizer/"):
            return Cause(
                "bad-state",
                f"The optimizer's state {case.node.name} held {out.bad_counts} when the step began.",
            )
        return Cause(
            "bad-parameter",
            f"The parameter {case.node.name} was bad when the step began: {out.bad_counts} of "
            f"{int(out.elements)} elements.",
            advice="Look at its initialisation, or at the checkpoint it was loaded from.",
        )
    if COMMUNICATION.search(op_type):
        return Cause("received", "The bad value came from another rank: what this rank gave was good.")
    for name, health in case.loaded:
        if health.is_bad:
            return Cause(
                "bad-input",
                f"The data was bad when it came: {name}, which was loaded or came from another process, holds "
                f"{health.bad_counts} among {int(health.elements)} elements.",
                advice="Look at the checkpoint or the file it was loaded from.",
            )
    return None


def _never_written(case: Case) -> Cause | None:
    user = case.first_user
    used = "" if user is None else f" It is used first by {user}."
    return Cause(
        "uninitialised",
        f"Memory that was never written: {case.op} returns it as it was found, here with {case.out.bad_counts}, and "
        f"something takes it before all of it was filled.{used}",
        advice="Fill all of it first, or make it with torch.zeros.",
    )


def _overwritten(case: Case) -> Cause | None:
    """Memory that an input shares was written to after the input was recorded: its own record is from before."""
    for writer, health in case.writers:
        if health.is_bad and not case.came_bad:
            line = f" ({writer.stack[-1].file}:{writer.stack[-1].line})" if writer.stack else ""
            return Cause(
                "overwritten",
                f"The memory of an input was overwritten before: {writer.name}{line} wrote {health.bad_counts} "
                "into it.",
                advice="Look at what that line writes, and through which view.",
            )
    return None


# --- functions outside of where they are defined -------------------------------------------------------


def _log(case: Case) -> Cause | None:
    given = case.health(len(case.arguments) - 1)  # x·log(y) has y last
    if given is None:
        return None
    shift = {"log1p": -1.0}.get(case.op, 0.0)
    if case.out.nan and given.finite and given.min < shift:
        return Cause(
            "log-of-negative",
            f"{case.op} of a negative number: its input goes down to {number_text(given.min)}"
            + (f", and {_count(given.negative, given.elements, 'negative')}." if not shift else "."),
            advice="Clamp the input to a small positive number, or find out why it is negative.",
        )
    if case.out.neg_inf and (given.zero if not shift else given.min == shift):
        what = "zero" if not shift else "−1"
        return Cause(
            "log-of-zero",
            f"{case.op} of {what}: "
            + (
                _count(given.zero, given.elements, "zero") + " in its input."
                if not shift
                else "its input reaches −1."
            ),
            advice="Add a small epsilon, clamp, or compute in log space (log_softmax, logsigmoid, logsumexp).",
        )
    return None


def _division(case: Case) -> Cause | None:
    if case.forward_op in ("sqrt", "norm", "linalg_vector_norm", "log", "acos", "asin", "pow", "rsqrt"):
        return None
    places = {"addcdiv": (1, 2), "reciprocal": (-1, 0)}.get(case.op, (0, 1))
    top = case.health(places[0]) if places[0] >= 0 else None
    bottom = case.health(places[1])
    constant = None if len(case.arguments) > places[1] else case.number("other", "scalar")
    if constant is not None:
        if constant == 0:
            return Cause("division-by-zero", "Division by the constant 0.")
        return None
    if len(case.arguments) <= places[1] and case.varies("other") and top is not None and not top.is_bad:
        return Cause(
            "division-by-zero",
            f"Division by a number that was 0 or very close to it: it differs from run to run, and what it divides "
            f"reaches {number_text(top.magnitude)}.",
            advice="Look at how this number is worked out.",
        )
    if case.op == "addcdiv" and _is_beyond_reach(case, top, bottom):
        return _infinite_factor(case)
    if bottom is None or not bottom.finite:
        return None
    name = case.named(places[1])
    if bottom.zero and (case.out.nan or case.out.infinities):
        if case.finding.phase == "optimizer" and (case.op == "addcdiv" or _is_root(case, places[1])):
            return _small_epsilon(case, bottom)
        both = top is not None and top.zero and case.out.nan
        zeros = (
            f"the divisor {name} is zero"
            if bottom.elements == 1
            else f"{_count(bottom.zero, bottom.elements, 'zero')} in the divisor {name}"
        )
        return Cause(
            "division-by-zero",
            f"Division by zero{' (0/0)' if both else ''}: {zeros}.",
            advice="Add a small epsilon to the divisor, or divide only where it is not zero.",
        )
    if case.out.infinities:
        smallest = "" if top is None else f" of numbers up to {number_text(top.magnitude)}"
        return Cause(
            "overflow",
            f"Division{smallest} by numbers close to zero exceeds what {case.dtype} can hold "
            f"({number_text(case.largest)}); the divisor {name} holds {bottom.spread}.",
        )
    return None


def _fused_optimizer(case: Case) -> Cause | None:
    """Adam in one operation: parameters, gradients, their mean and that of their squares."""
    squares, epsilon = case.health(3), case.number("eps")
    if squares is None or not squares.zero or epsilon is None or epsilon > 1e-7 or not case.out.is_bad:
        return None
    return Cause(
        "epsilon-too-small",
        f"The optimizer divides by zero: {_count(squares.zero, squares.elements, 'zero')} in {case.arguments[3]}, the "
        f"mean of the squared gradients, and epsilon is {number_text(epsilon)}.",
        advice="Raise eps (1e-4 for float16), or keep the optimizer's state in float32.",
    )


def _is_beyond_reach(case: Case, top: Health | None, bottom: Health | None) -> bool:
    """Whether a quotient of good numbers is too small to overflow, so that its factor must have done it."""
    if top is None or bottom is None or not bottom.finite or bottom.min <= 0 or top.is_bad:
        return False
    return top.magnitude / bottom.min < math.sqrt(case.largest)


def _infinite_factor(case: Case) -> Cause | None:
    """Small numbers made infinite or NaN by a factor: in optimizers, the learning rate."""
    is_known = case.number("alpha", "value", "other", "scalar") is not None
    if not is_known and not case.varies("alpha", "value", "other", "scalar", "weight"):
        return None
    reach = " and ".join(number_text(each.magnitude) for each in case.given)
    if case.finding.phase == "optimizer":
        return Cause(
            "infinite-learning-rate",
            f"The learning rate must be infinite, NaN or far too large: what {case.op} was given reaches only {reach}.",
            advice="Look at the schedule: a division by zero, or a negative number to a power.",
        )
    return Cause(
        "infinite-constant",
        f"The number that {case.op} was given must be infinite, NaN or far too large: the tensors reach only {reach}.",
        advice="Look at how this number is worked out: it is no tensor, so it was not recorded.",
    )


def _is_root(case: Case, place: int) -> bool:
    """Whether an input is a root, or a root and a little more."""
    return plain_name(case.maker_of(case.arguments[place])) in ("sqrt", "add")


def _small_epsilon(case: Case, bottom: Health) -> Cause:
    low = case.dtype == "float16"
    return Cause(
        "epsilon-too-small",
        f"The optimizer divides by zero: {_count(bottom.zero, bottom.elements, 'zero')} in {case.arguments[-1]}, the "
        "root of the squared gradients plus epsilon"
        + ("; an epsilon below 6e-08 is zero in float16." if low else ", so epsilon is 0 or too small."),
        advice="Raise eps (1e-4 for float16), or keep the optimizer's state in float32.",
    )


def _sqrt(case: Case) -> Cause | None:
    given = case.health(0)
    if given is None:
        return None
    if case.out.nan and given.negative:
        return Cause(
            f"{case.op}-of-negative",
            f"{case.op} of a negative number: {_count(given.negative, given.elements, 'negative')} in its input, "
            f"down to {number_text(given.min)}.",
            advice="Clamp the input at 0; a variance computed as E[x²]−E[x]² can come out slightly negative.",
        )
    if case.op == "rsqrt" and given.zero:
        return Cause(
            "division-by-zero",
            f"rsqrt of zero is infinite: {_count(given.zero, given.elements, 'zero')} in its input.",
            advice="Add a small epsilon inside the root.",
        )
    return None


def _pow(case: Case) -> Cause | None:
    constant = case.number("self")
    if constant is not None:  # a number to the power of a tensor
        power = case.health(0)
        if power is None or not case.out.infinities:
            return None
        return Cause(
            "overflow",
            f"Overflow: {number_text(constant)} to the power of {number_text(power.max)} exceeds the largest "
            f"{case.dtype}, {number_text(case.largest)}.",
        )
    base = case.health(0)
    exponent = case.number("exponent")
    power = case.health(1)
    if base is None:
        return None
    shown = number_text(exponent) if exponent is not None else "a tensor" if power is None else power.spread
    fractional = exponent is None or not float(exponent).is_integer()
    if case.out.nan and base.negative and fractional:
        return Cause(
            "power-of-negative",
            f"A negative number to a power that is no integer ({shown}): "
            f"{_count(base.negative, base.elements, 'negative')} in the base, down to {number_text(base.min)}.",
            advice="Take the absolute value or clamp the base first.",
        )
    lowest = exponent if exponent is not None else -1.0 if power is not None and power.negative else 0.0
    if case.out.infinities and base.zero and lowest < 0:
        if case.forward_op in ("pow", "sqrt", "norm", "linalg_vector_norm"):
            return _gradient_at_zero(case)
        return Cause(
            "division-by-zero",
            f"Zero to a negative power ({shown}): {_count(base.zero, base.elements, 'zero')} in the base.",
        )
    if case.out.infinities:
        return _overflow(case, f"a power of {shown}")
    return None


def _domain(case: Case) -> Cause | None:
    given = case.health(0)
    if given is None or not case.out.is_bad:
        return None
    low, high = {"acosh": (1.0, math.inf), "logit": (0.0, 1.0)}.get(case.op, (-1.0, 1.0))
    if given.min < low or given.max > high:
        edge = number_text(given.max if given.max > high else given.min)
        return Cause(
            f"{case.op}-out-of-range",
            f"{case.op} is only defined from {number_text(low)} to {number_text(high)}, and its input reaches {edge}, "
            "outside of that.",
            advice="Clamp the input; a cosine computed in floating point can exceed 1 by a rounding error.",
        )
    if case.op in ("atanh", "erfinv", "logit") and (given.min == low or given.max == high):
        kind, edges = ("the-edge", "0 and 1") if case.op == "logit" else ("one", "±1")
        return Cause(f"{case.op}-at-{kind}", f"{case.op} is infinite at {edges}, and its input reaches that.")
    return None


def _gamma(case: Case) -> Cause | None:
    given = case.health(0)
    if given is None or given.is_bad or not given.zero + given.negative:
        return None
    which = [
        _count(number, given.elements, what)
        for number, what in ((given.zero, "zero"), (given.negative, "negative"))
        if number
    ]
    return Cause(
        f"{case.op}-at-a-pole",
        f"{case.op} is infinite or not defined at zero and at the negative whole numbers: {' and '.join(which)} in its "
        "input.",
        advice="Keep the input positive: add a small number to counts and concentrations.",
    )


def _singular(case: Case) -> Cause | None:
    if any(each.is_bad for each in case.given) or not case.given:
        return None
    what = {"cholesky": "factorised", "solve": "solved", "inv": "inverted"}
    done = next((word for key, word in what.items() if key in case.op), "inverted")
    return Cause(
        "singular-matrix",
        f"A singular matrix cannot be {done}: {case.arguments[0]} holds {case.given[0].spread}, and {case.op} does not "
        "stop at it.",
        advice="Add a small multiple of the identity, use torch.linalg.pinv or lstsq, or look at the info it returns.",
    )


def _equal_values(case: Case) -> Cause | None:
    """Gradients of decompositions divide by the differences of singular or eigen values."""
    names = {"svd": "singular values", "eigh": "eigenvalues", "eig": "eigenvalues", "symeig": "eigenvalues"}
    forward = case.forward_op.removeprefix("linalg_")
    if forward not in names or not case.out.is_bad:
        return None
    return Cause(
        f"equal-{names[forward].replace(' ', '-')}",
        f"The gradient of {case.forward_op} divides by the differences of its {names[forward]}, and some of them are "
        "equal.",
        advice="Avoid gradients through the vectors, or add noise so that the matrix has distinct values.",
    )


# --- gradients that do not exist -----------------------------------------------------------------------


def _gradient_at_zero(case: Case) -> Cause | None:
    """Gradients with a division by something that is zero where the function has no slope."""
    forward = case.forward_op
    stories = {
        "sqrt": ("sqrt-gradient-at-zero", "The gradient of sqrt is infinite at 0"),
        "rsqrt": ("rsqrt-gradient-at-zero", "The gradient of rsqrt is infinite at 0"),
        "log": ("log-gradient-at-zero", "The gradient of log is infinite at 0"),
        "log1p": ("log-gradient-at-zero", "The gradient of log1p is infinite at −1"),
        "norm": ("norm-of-zero", "The gradient of a norm is not defined for a vector of zeros"),
        "linalg_vector_norm": ("norm-of-zero", "The gradient of a norm is not defined for a vector of zeros"),
        "cdist_forward": ("norm-of-zero", "The gradient of a distance is not defined between equal points"),
        "std": (
            "std-of-constant",
            "The gradient of a standard deviation is not defined where all values are equal",
        ),
        "std_mean": (
            "std-of-constant",
            "The gradient of a standard deviation is not defined where all values are equal",
        ),
        "pow": ("power-gradient-at-zero", "The gradient of this power is infinite at 0"),
        "acos": ("acos-gradient-at-one", "The gradient of acos is infinite at ±1"),
        "asin": ("asin-gradient-at-one", "The gradient of asin is infinite at ±1"),
        "acosh": ("acosh-gradient-at-one", "The gradient of acosh is infinite at 1"),
        "atanh": ("atanh-gradient-at-one", "The gradient of atanh is infinite at ±1"),
    }
    if forward not in stories or not case.out.is_bad:
        return None
    zeros = [
        (tensor.tensor, tensor.health)
        for tensor in case.inputs
        if tensor.health is not None and tensor.health.zero and tensor.tensor != case.arguments[0]
    ]
    if case.op in ("reciprocal", "rsqrt", "pow") and case.inputs and case.inputs[0].health is not None:
        zeros = [(case.inputs[0].tensor, case.inputs[0].health)] if case.inputs[0].health.zero else []
    if not zeros and case.op != "mul":
        return None
    kind, sentence = stories[forward]
    behind = case.forward_input
    if behind is not None and behind[1].zero:
        zeros = [(f"its input {behind[0]}", behind[1])]
    if zeros:
        name, health = zeros[0]
        sentence += f", and {_count(health.zero, health.elements, 'zero')} in {name}"
    first = case.health(0)
    if first is not None and first.zero and case.out.nan:
        sentence += "; the gradient that arrives there is 0, and 0/0 is NaN"
    advice = "Add a small epsilon inside, or give torch.where a safe value in both branches."
    return Cause(kind, sentence + ".", advice=advice)


# --- numbers too large ---------------------------------------------------------------------------------


def _exp(case: Case) -> Cause | None:
    given = case.health(0)
    if given is None or not case.out.pos_inf:
        return None
    limit = math.log(case.largest) if math.isfinite(case.largest) else 0
    limit = {"exp2": limit / math.log(2), "sinh": limit + math.log(2), "cosh": limit + math.log(2)}.get(
        case.op, limit
    )
    return Cause(
        f"{case.op}-overflow",
        f"{case.op} overflows: its input reaches {number_text(given.max)}, and {case.dtype} holds {case.op} only up to "
        f"about {limit:.4g}.",
        advice="Subtract the maximum first (as softmax and logsumexp do), or clamp the input.",
    )


def _cast(case: Case) -> Cause | None:
    given = case.health(len(case.arguments) - 1)
    if given is None or not case.out.infinities or not given.finite or given.is_bad:
        return None
    return Cause(
        "cast-overflow",
        f"The cast to {case.dtype} overflows: its input reaches {number_text(given.magnitude)}, and the largest "
        f"{case.dtype} is {number_text(case.largest)}.",
        advice="Scale the values down, or use bfloat16, which has the range of float32."
        if case.dtype == "float16"
        else "Scale the values down before the cast.",
    )


def _overflow(case: Case, what: str) -> Cause | None:
    finite = case.given
    if not finite or not case.dtype:
        return None
    reach = " and ".join(number_text(each.magnitude) for each in finite[-2:])
    constant = case.number("other", "scalar") if len(case.arguments) == 1 else None
    if constant is not None:
        reach += f" and {number_text(constant)}"
    low = case.dtype in ("float16", "float8_e5m2", "float8_e4m3fn")
    return Cause(
        "overflow",
        f"Overflow: {what} of numbers up to {reach} exceeds the largest {case.dtype}, {number_text(case.largest)}.",
        advice="Scale the values down, use bfloat16 or float32 here, or a smaller loss scale." if low else "",
    )


def _product(case: Case) -> Cause | None:
    """Matrix products, convolutions and attention: sums of products."""
    magnitudes = [each.magnitude for each in case.given]
    if not magnitudes:
        return None
    if any(each.status == "intended" for each in case.inputs):
        return _with_infinity(case)
    reach = math.prod(sorted(magnitudes)[-2:])
    if case.out.infinities or case.out.nan:
        # A sum of products can be many times larger than one of them.
        if reach * 1e6 < case.largest:
            return None
        found = _overflow(
            case, {"mm": "a matrix product", "addmm": "a matrix product"}.get(case.op, f"{case.op}")
        )
        return None if found is None else replace(found, proof=(*found.proof, _operands(case)))
    return None


def _operands(case: Case) -> str:
    """The factors of a product, and how large each is."""
    known = [(name, case.health(place)) for place, name in enumerate(case.arguments)]
    return " ".join(
        f"{name} holds {health.spread}."
        for name, health in known[-2:]
        if health is not None and health.finite
    )


def _elementwise(case: Case) -> Cause | None:
    """Sums and products element by element, and sums over elements."""
    found = _with_infinity(case)
    healths = case.given
    if found is not None or not healths or any(each.is_bad for each in healths):
        return found
    magnitudes = [each.magnitude for each in healths]
    constant = abs(case.number("other", "alpha", "scalar") or 1.0)
    if not math.isfinite(constant) or not case.out.infinities:
        return _infinite_factor(case)
    reach = {
        "mul": math.prod(magnitudes) * (constant if len(case.arguments) < 2 else 1.0),
        "addcmul": math.prod(magnitudes[-2:]),
    }.get(case.op, sum(magnitudes) * max(constant, 1.0) * max(each.elements for each in healths))
    if reach < case.largest / 2:
        return _infinite_factor(case)
    return _overflow(case, {"mul": "a product", "sum": "a sum", "mean": "a sum"}.get(case.op, f"{case.op}"))


def _with_infinity(case: Case) -> Cause | None:
    """NaN of infinities that were in the inputs: 0·inf and inf−inf."""
    masked = [each for each in case.inputs if each.health is not None and each.health.infinities]
    if not masked or not case.out.nan:
        return None
    name = masked[0].tensor
    if case.op in ("mul", "mm", "addmm", "convolution", "addcmul"):
        return Cause(
            "zero-times-infinity",
            f"0·inf is NaN: {name} holds infinities, and it is multiplied by zeros.",
            advice="Replace masked elements with masked_fill or where instead of multiplying by a mask.",
        )
    if case.op in ("sub", "add", "rsub", "sum", "mean", "cumsum"):
        return Cause(
            "infinity-minus-infinity",
            f"inf−inf is NaN: {' and '.join(each.tensor for each in masked[:2])} hold infinities that meet.",
        )
    return None


# --- softmax and losses --------------------------------------------------------------------------------


def _softmax(case: Case) -> Cause | None:
    given = case.health(0)
    if given is None:
        return None
    if case.out.nan and given.neg_inf:
        dim = case.number("dim")
        width = (
            given.shape[int(dim)]
            if dim is not None and given.shape and -len(given.shape) <= dim < len(given.shape)
            else 0
        )
        rows = (
            f" {int(case.out.nan) // width} of {int(given.elements) // width} rows are all −inf, so"
            if width
            else ""
        )
        return Cause(
            "fully-masked-row",
            f"{case.op} over a fully masked row:{rows} it divides 0 by 0 there.",
            advice="Leave at least one element of every row unmasked, or use a large negative number such as "
            "torch.finfo(dtype).min instead of −inf.",
        )
    if case.out.nan and given.pos_inf:
        return Cause(
            "softmax-of-infinity", f"{case.op} of +inf: {_count(given.pos_inf, given.elements, '+inf')}."
        )
    return None


def _attention(case: Case) -> Cause | None:
    masked = [each for each in case.inputs if each.health is not None and each.health.neg_inf]
    if case.out.nan and masked:
        return Cause(
            "fully-masked-row",
            f"Attention over a fully masked row: the mask {masked[0].tensor} leaves some queries nothing to attend to, "
            "and the softmax divides 0 by 0 there.",
            advice="Leave at least one element of every row unmasked.",
        )
    return _product(case)


def _loss(case: Case) -> Cause | None:
    given = case.health(0)
    if given is None:
        return None
    if given.neg_inf and case.out.infinities:
        return Cause(
            "masked-target",
            f"The loss picks a class whose log probability is −inf: {_count(given.neg_inf, given.elements, '−inf')} in "
            f"{case.arguments[0]}.",
            advice="A target is masked out or has probability 0; mask the loss at these places, or smooth the labels.",
        )
    if case.out.nan and not given.is_bad and case.op == "nll_loss_forward":
        return Cause(
            "mean-of-nothing",
            "The loss is a mean over no elements: 0/0. Every target of this batch is ignored (ignore_index) or "
            "has a weight of 0.",
            advice="Skip such batches, or use reduction='sum' and divide by a count of at least 1.",
        )
    return None


def _mean(case: Case) -> Cause | None:
    given = case.health(0)
    if case.out.nan and given is not None and (not given.elements or case.op == "segment_reduce"):
        empty = f"{case.arguments[0]} is empty" if not given.elements else "a segment is empty"
        return Cause(
            "mean-of-nothing",
            f"{case.op} over no elements is NaN: {empty}.",
            advice="Something before selects nothing, such as a mask without a True.",
        )
    if case.op in ("std", "var", "std_mean", "var_mean") and case.out.nan:
        return Cause(
            "variance-of-one",
            f"{case.op} of a single element is NaN: it divides by the number of elements minus one.",
            advice="Leave the normalisation out where there is a single element, or see to it that there are more: "
            "with correction=0 the result is 0, and dividing by it gives NaN again unless an epsilon is added.",
        )
    return None


def _norm_layer(case: Case) -> Cause | None:
    given = case.health(0)
    if given is None or not case.out.is_bad:
        return None
    if case.op == "native_batch_norm":
        variance = case.health(4)
        if variance is not None and variance.negative:
            return Cause(
                "negative-variance", f"The running variance is negative, down to {number_text(variance.min)}."
            )
    if given.magnitude > math.sqrt(case.largest) / 10:
        return _overflow(case, "the sum of squares in a normalisation")
    scale = case.output(1 if case.op in ("rms_norm", "fused_rms_norm") else 2)
    if scale is not None and scale.pos_inf:
        return Cause(
            "zero-variance",
            f"Division by a variance of zero: of {int(scale.elements)} groups of numbers that {case.op} normalises, "
            f"{int(scale.pos_inf)} hold one and the same number, and eps adds nothing.",
            advice="Raise eps; 1e-5 is usual.",
        )
    return None


def _alignment(case: Case) -> Cause | None:
    if case.finding.slot or not case.out.pos_inf:
        return None
    return Cause(
        "impossible-alignment",
        "No alignment is possible: a target is longer than its input, counting a blank between equal letters.",
        advice="Leave such examples out, or pass zero_infinity=True.",
    )


def _long_product(case: Case) -> Cause | None:
    given = case.health(0)
    if given is None or not case.out.infinities or given.magnitude <= 1:
        return None
    return _overflow(case, f"a product of {int(given.elements)}")


def _weight_norm(case: Case) -> Cause | None:
    direction = case.health(0)
    if direction is None or not direction.zero or not case.out.nan:
        return None
    return Cause(
        "norm-of-zero",
        f"Division by a norm of zero: {_count(direction.zero, direction.elements, 'zero')} in {case.arguments[0]}, "
        "which is divided by its own norm.",
        advice="Begin with weights that are not zero, or put the normalisation on after they were set.",
    )


def _determinant(case: Case) -> Cause | None:
    if not case.out.neg_inf:
        return None
    return Cause(
        "singular-matrix",
        f"The logarithm of a determinant of zero: {case.arguments[0]} holds a singular matrix.",
        advice="Add a small multiple of the identity, or use a factorisation whose determinant cannot vanish.",
    )


_SMOOTHING = frozenset(["sum", "neg", "masked_fill", "mul", "div"])
"""What a loss does with log probabilities on the way to the mean of all classes."""


def _masked_elements(case: Case) -> Cause | None:
    """Results that take in infinities which were put there on purpose."""
    for each in case.inputs:
        if each.status == "intended" and each.health is not None and case.out.infinities:
            count = _count(each.health.infinities, each.health.elements, "infinite")
            if case.op in ("sum", "mean") and case.comes_of(each.tensor, "log_softmax", _SMOOTHING):
                return Cause(
                    "smoothed-masked-class",
                    f"Label smoothing takes every class into the loss, also those masked with −inf: {count} in "
                    f"{each.tensor}.",
                    advice="Mask with a large negative number instead of −inf, or smooth over the other classes only.",
                )
            return Cause(
                "masked-elements-used",
                f"The {case.op} takes in elements that were masked with infinities: {count} in {each.tensor}.",
                advice="Leave the masked elements out, or mask with 0 where they are added up.",
            )
    return None


def _scattered_sum(case: Case) -> Cause | None:
    """Sums of as many numbers as fall together."""
    given = case.given
    if not case.out.infinities or not given:
        return None
    most = max(given, key=lambda each: each.magnitude)
    if most.magnitude * most.elements < case.largest:
        return None
    return Cause(
        "overflow",
        f"Overflow: a sum of numbers up to {number_text(most.magnitude)} exceeds the largest {case.dtype}, "
        f"{number_text(case.largest)}.",
    )


class Entry(NamedTuple):
    """A rule, the operations it is about (all if none are named), and whether they work element by element."""

    ops: frozenset[str]
    rule: Rule
    elementwise: bool = False


def _for(names: str, rule: Rule, *, elementwise: bool = False) -> Entry:
    return Entry(frozenset(names.split()), rule, elementwise)


RULES: Sequence[Entry] = (
    _for("", _arrived),
    _for(" ".join(sorted(UNWRITTEN)), _never_written),
    _for("", _overwritten),
    _for("log log2 log10 log1p xlogy", _log, elementwise=True),
    _for("div mul reciprocal pow masked_fill sub", _equal_values),
    _for("div mul reciprocal pow rsqrt masked_fill cdist_backward", _gradient_at_zero, elementwise=True),
    _for("div floor_divide reciprocal addcdiv remainder fmod", _division, elementwise=True),
    _for("fused_adam fused_adamw", _fused_optimizer, elementwise=True),
    _for("sqrt rsqrt", _sqrt, elementwise=True),
    _for("pow", _pow, elementwise=True),
    _for("acos asin acosh atanh erfinv logit", _domain, elementwise=True),
    _for("lgamma digamma polygamma mvlgamma", _gamma, elementwise=True),
    _for(
        "linalg_inv_ex linalg_solve_ex linalg_lu_factor_ex linalg_lu_solve lu_solve linalg_solve_triangular "
        "linalg_cholesky_ex cholesky cholesky_inverse cholesky_solve triangular_solve linalg_ldl_solve inverse",
        _singular,
    ),
    _for("exp exp2 expm1 sinh cosh", _exp, elementwise=True),
    _for("to_copy to copy type_as", _cast, elementwise=True),
    _for("softmax log_softmax", _softmax),
    _for(
        "scaled_dot_product_flash_attention_for_cpu scaled_dot_product_flash_attention "
        "scaled_dot_product_efficient_attention scaled_dot_product_attention scaled_dot_product_attention_math",
        _attention,
    ),
    _for("nll_loss_forward nll_loss2d_forward binary_cross_entropy kl_div gather", _loss),
    _for("mean nanmean std var std_mean var_mean segment_reduce nanmedian", _mean),
    _for("mm addmm convolution einsum bilinear convolution_backward", _product),
    _for("add sub rsub mul addcmul sum mean cumsum lerp prod", _elementwise, elementwise=True),
    _for("native_layer_norm native_batch_norm native_group_norm rms_norm fused_rms_norm", _norm_layer),
    _for("sum mean cumsum max amax min amin logsumexp mm addmm dot index", _masked_elements),
    _for("prod cumprod", _long_product),
    _for("ctc_loss", _alignment),
    _for("weight_norm_interface weight_norm", _weight_norm),
    _for("linalg_slogdet logdet", _determinant),
    _for(
        "embedding_dense_backward embedding_bag index_add scatter_add index_put index_reduce", _scattered_sum
    ),
    _for(
        "norm linalg_vector_norm mse_loss var std",
        lambda case: _overflow(case, "a sum of squares") if case.out.infinities else None,
    ),
)
"""The first rule that has something to say is believed."""
