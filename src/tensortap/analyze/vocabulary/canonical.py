"""Operations as the analysis knows them, whichever framework executed them.

A vocabulary maps the names of its framework to these. What an operation is (a view, a cast, a test for NaN) follows
from its canonical name; which of its arguments plays which part (the divisor, the exponent) is told by the vocabulary,
because frameworks order and name their arguments differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "BEGINS_BACKWARD",
    "CASTS",
    "CHECKS",
    "COMPARISONS",
    "GARBAGE",
    "LEAVES",
    "LOADS",
    "MASK_MAKERS",
    "MEETS",
    "OVERWRITERS",
    "PARTIAL_VIEWS",
    "POPS",
    "PUSHES",
    "RETURNS",
    "SIGN_CHANGERS",
    "UNSCALES",
    "UNWRITTEN",
    "VALUE_FREE",
    "VIEWS",
    "WHOLE_VIEWS",
    "Operation",
    "names",
]


def names(text: str) -> frozenset[str]:
    """A set of names, written with blanks between them."""
    return frozenset(text.split())


WHOLE_VIEWS = names(
    """
    view unsafe_view reshape reshape_alias t transpose permute expand unsqueeze squeeze detach alias view_as flatten
    unflatten movedim swapaxes conj lift_fresh contiguous view_as_real view_as_complex ravel wait_tensor accumulate_grad
    next_iteration
    """
)
"""Operations whose output holds all elements of their first input, and no others."""

PARTIAL_VIEWS = names(
    """
    slice select split split_with_sizes chunk unbind narrow as_strided diagonal unfold real imag index_select
    tensor_split unsafe_split unsafe_chunk unsafe_split_with_sizes gather
    """
)
"""Operations whose output holds some of the elements of their first input."""

VIEWS = WHOLE_VIEWS | PARTIAL_VIEWS

UNWRITTEN = names("empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided")
"""Operations that make memory and leave it as it was found: what it holds means nothing."""

LOADS = "set"
"""Puts other memory under a tensor, as loading a checkpoint does."""

GARBAGE = UNWRITTEN | {"resize", "resize_as", LOADS}
"""Operations whose output may be memory as it was found."""

BEGINS_BACKWARD = "ones_like"
"""What the backward pass is given to begin with: it only takes the shape of the loss."""

VALUE_FREE = GARBAGE | names(
    f"""
    zeros_like {BEGINS_BACKWARD} full_like rand_like randn_like randint_like new_zeros new_ones new_full zeros ones full
    arange eye rand randn randint randperm shape size sym_size numel is_same_size shape_as_tensor scalar_tensor
    bernoulli_like
    """
)
"""Operations whose output does not depend on the values of their inputs, at most on their shapes."""

OVERWRITERS = names(
    f"""
    copy fill zero normal uniform random bernoulli exponential cauchy geometric log_normal trunc_normal resize {LOADS}
    """
)
"""Operations that, in place, forget what their first input held."""

MASK_MAKERS = names(
    """
    full full_like new_full fill scalar_tensor masked_fill where masked_scatter index_fill index_put constant_pad_nd pad
    triu tril copy scatter fill_diagonal slice_scatter select_scatter
    """
)
"""Operations that put constants into tensors: an infinity they make of finite inputs is meant."""

SIGN_CHANGERS = names("neg mul div sub rsub abs reciprocal pow sign")
"""Operations that can make +inf of −inf."""

CASTS = names("to_copy to copy type_as to_dtype")

CHECKS = names("eq ne isnan isinf isfinite isposinf isneginf")
"""Operations with which programs look whether a value is bad."""

COMPARISONS = names("lt le gt ge")

CONSTANTS = names("zeros ones full arange eye scalar_tensor new_zeros new_ones new_full")
"""Operations that make tensors of nothing but what a program says."""

LEAVES = "item"
"""Takes a value out of the program's tensors, as a number."""

MEETS = "merge"
"""Where the ways of a branch or a loop meet: it hands on whichever of its inputs comes."""

RETURNS = "next_iteration"
"""Takes a value back to the head of a loop."""

PUSHES, POPS = names("push push_at list_of"), "pop"
"""Put a value away in a list or a stack, and take it out again: how loops keep values for their gradients."""

UNSCALES = "unscale"
"""A gradient scaler divides gradients by its scale, and looks whether they are finite."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What one of a framework's operations is.

    Attributes:
        name: canonical.
        word: what it is called in sentences.
        inputs: places among the tensors it is given, by the part they play: `divisor`, `log_of`, `variance` …
        outputs: places among its outputs, likewise.
        numbers: names of the arguments that are plain numbers, by the part they play.
        constants: numbers that are not given because the operation stands for them, by the part they play.
        is_in_place: it writes into its first inputs, told by its name: for graphs that do not say what is written.
        is_over_lists: it works on lists of tensors in parallel.
        communicates: its outputs come from other ranks.
        hidden_writes: places of inputs, the same as of outputs, that it writes into although its name does not say so.

    >>> Operation("div", inputs={"divisor": 1}).place_of("divisor"), Operation("reshape").is_view
    (1, True)
    """

    name: str
    word: str = ""
    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    is_in_place: bool = False
    is_over_lists: bool = False
    communicates: bool = False
    hidden_writes: tuple[int, ...] = ()
    is_view: bool = field(init=False)
    is_partial_view: bool = field(init=False)
    is_garbage: bool = field(init=False)
    is_unwritten: bool = field(init=False)
    is_value_free: bool = field(init=False)

    def __post_init__(self) -> None:
        if not self.word:
            object.__setattr__(self, "word", self.name)
        # Asked for every edge of a graph, so worked out once.
        for attribute, members in _FAMILIES.items():
            object.__setattr__(self, attribute, self.name in members)

    @property
    def overwrites(self) -> bool:
        """Whether, done in place, it forgets what its first input held."""
        return self.name in OVERWRITERS

    @property
    def makes_masks(self) -> bool:
        """Whether an infinity that it makes of finite inputs is meant."""
        return self.name in MASK_MAKERS

    @property
    def casts(self) -> bool:
        """Whether it only changes the dtype."""
        return self.name in CASTS

    @property
    def changes_sign(self) -> bool:
        """Whether it can make +inf of −inf."""
        return self.name in SIGN_CHANGERS

    @property
    def checks(self) -> bool:
        """Whether programs use it to look if a value is bad."""
        return self.name in CHECKS

    @property
    def compares(self) -> bool:
        """Whether it puts values in an order."""
        return self.name in COMPARISONS

    @property
    def updates(self) -> bool:
        """Whether it is an optimizer's update of a variable, with the gradient among what it is given."""
        return "variable" in self.inputs and "gradient" in self.inputs

    def place_of(self, part: str, default: int = 0) -> int:
        """The place among the tensors it is given of the one that plays a part."""
        return self.inputs.get(part, default)


_FAMILIES = {
    "is_view": VIEWS,
    "is_partial_view": PARTIAL_VIEWS,
    "is_garbage": GARBAGE,
    "is_unwritten": UNWRITTEN,
    "is_value_free": VALUE_FREE,
}
