"""The table of causes: what makes operations produce bad values, and how that shows in the health of their inputs.

Each rule is a function that is shown the case and says the cause, or nothing if it is not its own. Rules speak of
canonical operations (see `analyze.vocabulary`), and are grouped by family, one module each. To teach a new cause, write
a function, put it into the table `RULES` with the kinds it tells of, and describe them in docs/first-bad.md.

Everything is decided from pills. Where values were recorded too, the first bad element and what it was made of
are named.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensortap.analyze.causes import (
    arrival,
    attention,
    compiled,
    division,
    domain,
    gradient,
    indexing,
    infinities,
    matrices,
    normalisation,
    optimizer,
    overflow,
    reduction,
)
from tensortap.analyze.causes.rules import Rule, rule
from tensortap.analyze.vocabulary.canonical import UNWRITTEN

__all__ = ["KINDS", "RULES", "Rule"]

_AT_ZERO = (
    "sqrt-gradient-at-zero rsqrt-gradient-at-zero log-gradient-at-zero norm-of-zero std-of-constant "
    "power-gradient-at-zero acos-gradient-at-one asin-gradient-at-one acosh-gradient-at-one atanh-gradient-at-one"
)
_FACTORS = "infinite-learning-rate infinite-constant"
_MET = "zero-times-infinity infinity-minus-infinity fully-masked-row"

RULES: Sequence[Rule] = (
    rule("", arrival.arrived, "not-looked-at bad-input bad-state bad-parameter received"),
    rule(" ".join(sorted(UNWRITTEN)), arrival.never_written, "uninitialised"),
    rule("", arrival.overwritten, "overwritten"),
    rule(
        "executable", compiled.only_together, "only-compiled not-repeated not-looked-inside arguments-donated"
    ),
    rule("index", indexing.out_of_bounds, "index-out-of-bounds"),
    rule("log log2 log10 log1p xlogy", domain.logarithm, "log-of-negative log-of-zero", is_elementwise=True),
    rule(
        "div mul reciprocal pow masked_fill sub",
        gradient.equal_values,
        "equal-singular-values equal-eigenvalues",
    ),
    rule(
        "div mul reciprocal pow rsqrt masked_fill distance_backward sqrt_backward rsqrt_backward",
        gradient.gradient_at_zero,
        f"division-by-zero {_AT_ZERO}",
        is_elementwise=True,
    ),
    rule(
        "div floor_divide reciprocal addcdiv remainder fmod",
        division.division,
        f"division-by-zero epsilon-too-small overflow {_FACTORS}",
        is_elementwise=True,
    ),
    rule(
        optimizer.UPDATES,
        optimizer.update,
        "epsilon-too-small infinite-learning-rate overflow",
        is_elementwise=True,
    ),
    rule(
        "sqrt rsqrt",
        domain.root,
        "sqrt-of-negative rsqrt-of-negative division-by-zero",
        is_elementwise=True,
    ),
    rule(
        "pow",
        domain.power,
        f"overflow power-of-negative division-by-zero {_AT_ZERO}",
        is_elementwise=True,
    ),
    rule(
        "acos asin acosh atanh erfinv logit",
        domain.out_of_range,
        "acos-out-of-range asin-out-of-range acosh-out-of-range atanh-out-of-range erfinv-out-of-range "
        "logit-out-of-range atanh-at-one erfinv-at-one logit-at-the-edge",
        is_elementwise=True,
    ),
    rule(
        "lgamma digamma polygamma mvlgamma",
        domain.gamma,
        "lgamma-at-a-pole digamma-at-a-pole polygamma-at-a-pole mvlgamma-at-a-pole",
        is_elementwise=True,
    ),
    rule("inverse solve lu cholesky", matrices.singular, "singular-matrix"),
    rule(
        "exp exp2 expm1 sinh cosh",
        overflow.exponential,
        "exp-overflow exp2-overflow expm1-overflow sinh-overflow cosh-overflow",
        is_elementwise=True,
    ),
    rule("to_copy to copy type_as", overflow.cast, "cast-overflow", is_elementwise=True),
    rule("softmax log_softmax", attention.softmax, "fully-masked-row softmax-of-infinity"),
    rule(
        "cross_entropy",
        attention.cross_entropy,
        "masked-target fully-masked-row softmax-of-infinity",
    ),
    rule("attention", attention.attention, f"fully-masked-row overflow {_MET}"),
    rule(
        "nll_loss picked_loss binary_cross_entropy kl_div gather",
        reduction.loss,
        "masked-target mean-of-nothing",
    ),
    rule(
        "mean nanmean std var std_mean var_mean segment_reduce nanmedian",
        reduction.mean,
        "mean-of-nothing variance-of-one",
    ),
    rule("mm addmm convolution einsum bilinear convolution_backward", overflow.product, f"overflow {_MET}"),
    rule(
        "add sub rsub mul addcmul sum mean cumsum lerp prod",
        overflow.elementwise,
        f"overflow {_FACTORS} {_MET}",
        is_elementwise=True,
    ),
    rule(
        "layer_norm batch_norm group_norm rms_norm",
        normalisation.norm_layer,
        "negative-variance overflow zero-variance",
    ),
    rule(
        "sum mean cumsum max amax min amin logsumexp mm addmm index",
        infinities.masked_elements,
        "smoothed-masked-class masked-elements-used",
    ),
    rule("prod cumprod", overflow.long_product, "overflow"),
    rule("ctc_loss", reduction.alignment, "impossible-alignment"),
    rule("weight_norm", normalisation.weight_norm, "norm-of-zero"),
    rule("logdet", matrices.determinant, "singular-matrix"),
    rule(
        "embedding_backward embedding_bag index_add scatter_add index_put index_reduce",
        overflow.scattered_sum,
        "overflow",
    ),
    rule("norm mse_loss var std squared_difference", overflow.squares, "overflow"),
)
"""The first rule that has something to say is believed, so special rules stand before general ones."""

KINDS = frozenset(kind for each in RULES for kind in each.kinds)
"""All kinds that rules tell of; `explain` knows a few more, for what no rule has recognised."""
