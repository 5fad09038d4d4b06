"""Expressions over tensors, parsed and worked out by this module alone: nothing is executed (X17).

What is allowed is listed here: arithmetic, comparisons, slices, and functions of NumPy by name. Everything else is
refused before anything is computed. Results are bounded in size, so an expression cannot fill the memory.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tensortap.errors import UsageError
from tensortap.suggest import nearest

__all__ = ["Expression", "ExpressionError", "TensorReference", "parse_reference"]

MAX_CHARACTERS = 2_000
MAX_PARTS = 400
MAX_ELEMENTS = 1 << 28
"""Of one result: two gigabytes of float64."""
MAX_MATRIX = 4096
"""Rows of what goes into linear algebra, whose time grows with their third power."""
_MAX_BITS = 4096

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FUNCTIONS = _words(
    """
    abs absolute add all allclose any arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort
    argwhere array_equal asarray average cbrt ceil clip concatenate conj cos cosh count_nonzero cumprod cumsum diag
    diagonal diff divide equal exp exp2 expand_dims expm1 fabs flatnonzero flip floor fmax fmin greater greater_equal
    histogram hypot imag invert isclose isfinite isinf isnan isneginf isposinf less less_equal log log10 log1p log2
    logaddexp logical_and logical_not logical_or logical_xor matmul max maximum mean median min minimum mod
    moveaxis multiply nan_to_num nanargmax nanargmin nanmax nanmean nanmedian nanmin nanpercentile nanquantile nanstd
    nansum nanvar negative nonzero not_equal percentile positive power prod ptp quantile ravel real reciprocal
    remainder reshape round searchsorted shape sign signbit sin sinh size sort spacing sqrt square squeeze stack std
    subtract sum swapaxes take tan tanh trace transpose tril triu trunc unique var vdot where
    """
)
_LINEAR_ALGEBRA = frozenset(
    ["norm", "det", "matrix_rank", "cond", "svd", "svdvals", "eigvals", "eigvalsh", "inv"]
)
_CONSTANTS = {"nan": math.nan, "inf": math.inf, "pi": math.pi, "e": math.e, "newaxis": None}
_DTYPES = frozenset(
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool_", "complex64"]
)
_PLAIN: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "len": len,
    "round": round,
    "float": float,
    "int": int,
    "bool": bool,
    "min": lambda *values: np.min(values[0]) if len(values) == 1 else min(values),
    "max": lambda *values: np.max(values[0]) if len(values) == 1 else max(values),
    "sum": lambda values: np.sum(values),
}
_ATTRIBUTES = frozenset(["shape", "size", "ndim", "T", "dtype", "real", "imag", "nbytes", "itemsize"])
_METHODS = _words(
    """
    all any argmax argmin argsort astype clip conj cumsum diagonal flatten max mean min nonzero prod ptp ravel
    reshape round squeeze std sum swapaxes trace transpose var
    """
)
_BACKTICKED = re.compile(r"`([^`]*)`")


class ExpressionError(UsageError):
    """An expression that is not allowed, or cannot be worked out; the message says what and where."""


class TensorReference(NamedTuple):
    """What stands between back-ticks: `[device:]node:slot[:op][[execution]]`."""

    node: str
    slot: int
    debug_op: str | None = None
    execution: int = -1
    device: str | None = None

    @property
    def tensor(self) -> str:
        """`node:slot`."""
        return f"{self.node}:{self.slot}"


_REFERENCE = re.compile(
    r"(?:(?P<device>/[^`]*?device:\w+:\d+):)?(?P<node>[^:\[\]]+)(?::(?P<slot>\d+))?(?::(?P<op>\w+))?"
    r"(?:\[(?P<execution>-?\d+)\])?"
)


def parse_reference(text: str) -> TensorReference:
    """Take a tensor reference apart; the slot may be left out.

    >>> parse_reference("model/fc/addmm:0:DebugIdentity[1]")
    TensorReference(node='model/fc/addmm', slot=0, debug_op='DebugIdentity', execution=1, device=None)
    """
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise ExpressionError(f"`{text}` names no tensor; write `node:slot`, such as `model/fc/addmm:0`.")
    return TensorReference(
        match["node"], int(match["slot"] or 0), match["op"], int(match["execution"] or -1), match["device"]
    )


class Expression:
    """A parsed expression.

    Args:
        text: with names of tensors in back-ticks.
        names: further names that may occur; None allows any.

    Attributes:
        references: what stands between back-ticks, in order.

    >>> double = Expression("np.max(`fc/addmm:0`[0]) * 2")
    >>> double.evaluate({"fc/addmm:0": np.array([[1.0, 3.0], [9.0, 9.0]])}.__getitem__)
    np.float64(6.0)
    >>> Expression("__import__('os')")
    Traceback (most recent call last):
    tensortap.analyze.expression.ExpressionError: ...
    """

    def __init__(self, text: str, names: frozenset[str] = frozenset()) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ExpressionError(f"The expression is longer than {MAX_CHARACTERS} characters.")
        if text.count("`") % 2:
            raise ExpressionError("A back-tick is not closed; write tensor names as `node:slot`.")
        self.text = text
        self.references: list[str] = []
        self._names = names
        try:
            tree = ast.parse(_BACKTICKED.sub(self._placeholder, text).strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            said = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ExpressionError(f"{text!r} is no expression: {said}.") from None
        self._body = tree.body
        if sum(1 for _ in ast.walk(self._body)) > MAX_PARTS:
            raise ExpressionError(f"The expression has more than {MAX_PARTS} parts.")
        self._check(self._body)

    def _placeholder(self, match: re.Match[str]) -> str:
        self.references.append(match[1])
        return f" _tensor_{len(self.references) - 1} "

    # --- before anything is computed ---------------------------------------------------------------

    def _check(self, node: ast.AST) -> None:
        """Refuse everything that is not listed."""
        match node:
            case ast.Constant(value=bool() | int() | float() | complex() | None):
                pass
            case ast.Constant(value=value) if value is ...:
                pass
            case ast.Name(id=name):
                self._check_name(name)
            case ast.Call(func=func, args=args, keywords=keywords):
                self._check_function(func)
                for each in args:
                    self._check(each)
                for keyword in keywords:
                    if keyword.arg is None:
                        raise ExpressionError("** is not allowed.")
                    self._check(keyword.value)
            case ast.Attribute(value=value, attr=name):
                if _is_numpy(value):
                    if name not in _CONSTANTS and name not in _DTYPES:
                        raise ExpressionError(f"np.{name} is not allowed here.{nearest(name, _FUNCTIONS)}")
                    return
                if name not in _ATTRIBUTES:
                    raise ExpressionError(f".{name} is not allowed.{nearest(name, _ATTRIBUTES | _METHODS)}")
                self._check(value)
            case ast.BinOp(op=op) if type(op) in _BINARY:
                self._check(node.left)
                self._check(node.right)
            case ast.UnaryOp(op=op) if type(op) in _UNARY:
                self._check(node.operand)
            case ast.Compare(ops=ops) if all(type(each) in _COMPARE for each in ops):
                for each in (node.left, *node.comparators):
                    self._check(each)
            case ast.BoolOp() | ast.IfExp() | ast.Tuple() | ast.List() | ast.Slice() | ast.Subscript():
                for child in ast.iter_child_nodes(node):
                    if not isinstance(child, (ast.boolop, ast.expr_context)):
                        self._check(child)
            case _:
                raise ExpressionError(
                    f"{_said(node)} is not allowed; use arithmetic, comparisons, slices and functions such as np.mean."
                )

    def _check_name(self, name: str) -> None:
        known = name in self._names or re.fullmatch(r"_tensor_\d+", name)
        if not known or (name.startswith("_tensor_") and int(name[8:]) >= len(self.references)):
            hint = nearest(name, self._names) or (
                f" There are {', '.join(sorted(self._names))}."
                if self._names
                else " Write tensors in `back-ticks`."
            )
            raise ExpressionError(f"There is no {name!r} here.{hint}")

    def _check_function(self, func: ast.expr) -> None:
        match func:
            case ast.Name(id=name) if name in _PLAIN:
                return
            case ast.Attribute(value=value, attr=name) if _is_numpy(value):
                if name in _FUNCTIONS or name in _DTYPES:
                    return
                raise ExpressionError(f"np.{name} is not allowed.{nearest(name, _FUNCTIONS)}")
            case ast.Attribute(value=ast.Attribute(value=value, attr="linalg"), attr=name) if _is_numpy(
                value
            ):
                if name in _LINEAR_ALGEBRA:
                    return
                raise ExpressionError(f"np.linalg.{name} is not allowed.{nearest(name, _LINEAR_ALGEBRA)}")
            case ast.Attribute(value=value, attr=name) if name in _METHODS:
                self._check(value)
                return
            case ast.Name(id=name):
                raise ExpressionError(f"{name}() is not allowed.{nearest(name, _PLAIN)}")
        raise ExpressionError(f"{_said(func)} cannot be called here.")

    # --- computing ---------------------------------------------------------------------------------

    def evaluate(self, load: Callable[[str], Any], names: Mapping[str, Any] | None = None) -> Any:
        """The value.

        Args:
            load: gives the value of what stood between back-ticks.
            names: values of the further names.

        Raises:
            ExpressionError: it cannot be worked out.
        """
        values = dict(names or {})
        for place, reference in enumerate(self.references):
            values[f"_tensor_{place}"] = _plain_array(load(reference))
        try:
            with np.errstate(all="ignore"):
                return self._value(self._body, values)
        except ExpressionError:
            raise
        except (
            TypeError,
            ValueError,
            IndexError,
            ArithmeticError,
            MemoryError,
            np.linalg.LinAlgError,
        ) as error:
            raise ExpressionError(f"{self.text!r} cannot be worked out: {error}.") from None

    def _value(self, node: Any, names: Mapping[str, Any]) -> Any:
        def value(part: Any) -> Any:
            return None if part is None else self._value(part, names)

        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return names[node.id]
            case ast.BinOp():
                left, right = value(node.left), value(node.right)
                _check_operands(type(node.op), left, right)
                return _BINARY[type(node.op)](left, right)
            case ast.UnaryOp():
                return _UNARY[type(node.op)](value(node.operand))
            case ast.BoolOp():
                result = value(node.values[0])
                for part in node.values[1:]:
                    if bool(result) != isinstance(node.op, ast.And):
                        break
                    result = value(part)
                return result
            case ast.Compare():
                left, result = value(node.left), None
                for op, part in zip(node.ops, node.comparators, strict=True):
                    right = value(part)
                    _check_operands(type(op), left, right)
                    holds = _COMPARE[type(op)](left, right)
                    result = holds if result is None else np.logical_and(result, holds)
                    left = right
                return result
            case ast.IfExp():
                return value(node.body) if value(node.test) else value(node.orelse)
            case ast.Tuple():
                return tuple(map(value, node.elts))
            case ast.List():
                return list(map(value, node.elts))
            case ast.Slice():
                return slice(value(node.lower), value(node.upper), value(node.step))
            case ast.Subscript():
                array, index = value(node.value), value(node.slice)
                _check_index(array, index)
                return array[index]
            case ast.Attribute():
                if _is_numpy(node.value):
                    return _CONSTANTS[node.attr] if node.attr in _CONSTANTS else getattr(np, node.attr)
                return getattr(np.asarray(value(node.value)), node.attr)
            case ast.Call():
                return self._call(node, value)
        raise ExpressionError(f"{_said(node)} is not allowed.")

    def _call(self, node: ast.Call, value: Callable[[Any], Any]) -> Any:
        arguments = [value(each) for each in node.args]
        options = {str(each.arg): value(each.value) for each in node.keywords}
        if "out" in options:
            raise ExpressionError("out= is not allowed.")
        _check_sizes(arguments, options)
        match node.func:
            case ast.Name(id=name):
                return _PLAIN[name](*arguments, **options)
            case ast.Attribute(value=part, attr=name) if _is_numpy(part):
                if name in ("matmul", "vdot"):
                    _check_operands(ast.MatMult, *arguments[:2])
                _check_counts(name, arguments, options)
                return getattr(np, name)(*arguments, **options)
            case ast.Attribute(value=ast.Attribute(value=part, attr="linalg"), attr=name) if _is_numpy(part):
                is_cheap = name == "norm" and len(arguments) == 1 and "ord" not in options
                if not is_cheap and any(max(np.shape(each), default=0) > MAX_MATRIX for each in arguments):
                    raise ExpressionError(f"np.linalg.{name} is limited to {MAX_MATRIX} rows; take a part.")
                return getattr(np.linalg, name)(*arguments, **options)
            case ast.Attribute(value=part, attr=name):
                return getattr(np.asarray(value(part)), name)(*arguments, **options)
        raise ExpressionError(f"{_said(node)} is not allowed.")


def _is_numpy(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("np", "numpy")


def _said(node: ast.AST) -> str:
    try:
        return repr(re.sub(r"_tensor_\d+", "`…`", ast.unparse(node))[:60])
    except (ValueError, AttributeError, RecursionError):
        return type(node).__name__


def _plain_array(value: Any) -> Any:
    """Values of types that NumPy calculates with."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.names is None else array


def _check_operands(op: type[ast.AST], left: Any, right: Any) -> None:
    for each in (left, right):
        if not isinstance(each, (bool, int, float, complex, np.generic, np.ndarray)):
            raise ExpressionError(f"A {type(each).__name__} cannot be calculated with.")
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if op is ast.Pow else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise ExpressionError("The numbers become too large.")
        return
    shapes = np.shape(left), np.shape(right)
    if op is ast.MatMult:
        if not shapes[0] or not shapes[1]:
            raise ExpressionError("@ needs matrices.")
        batch = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
        elements = math.prod(batch) * math.prod(shapes[0][-2:-1]) * math.prod(shapes[1][-1:])
        if elements * shapes[0][-1] > MAX_ELEMENTS * 64:
            raise ExpressionError("This matrix product is too large; take a part.")
    else:
        elements = math.prod(np.broadcast_shapes(*shapes))
    if elements > MAX_ELEMENTS:
        raise ExpressionError(f"The result would have {elements} elements; take a part.")


def _check_index(array: Any, index: Any) -> None:
    """Bound what picking elements by an array of places can make."""
    places = [
        each
        for each in (index if isinstance(index, tuple) else (index,))
        if isinstance(each, (np.ndarray, list))
    ]
    if places and isinstance(array, np.ndarray):
        picked = max(np.size(each) for each in places)
        if picked * max(math.prod(array.shape[len(places) :]), 1) > MAX_ELEMENTS:
            raise ExpressionError("The result would be too large; take a part.")


_COUNTS = {"histogram": 100_000, "percentile": 1000, "quantile": 1000, "diff": 100}
"""How much work some functions may be given by their second argument: a number, or a list of so many."""


def _check_counts(name: str, arguments: list[Any], options: Mapping[str, Any]) -> None:
    if name == "diag" and np.ndim(arguments[0]) == 1 and np.size(arguments[0]) > MAX_MATRIX:
        raise ExpressionError(f"np.diag is limited to {MAX_MATRIX} elements; take a part.")
    limit = _COUNTS.get(name.removeprefix("nan"))
    if limit is None:
        return
    for each in (*arguments[1:2], *(options.get(key) for key in ("bins", "q", "n"))):
        if (isinstance(each, int) and each > limit) or np.size(each) > limit:
            raise ExpressionError(f"np.{name} is limited to {limit} here.")


def _check_sizes(arguments: list[Any], options: Mapping[str, Any]) -> None:
    """Bound what functions that broadcast or are given a count can make."""
    arrays = [each for each in arguments if isinstance(each, np.ndarray)]
    for each in (*arguments, *options.values()):
        if isinstance(each, int) and abs(each) > MAX_ELEMENTS:
            raise ExpressionError(f"{each} is too large here.")
        if isinstance(each, (list, tuple)):
            total = sum(part.size for part in each if isinstance(part, np.ndarray))
            if total > MAX_ELEMENTS:
                raise ExpressionError("The result would be too large; take a part.")
    if len(arrays) > 1:
        try:
            elements = math.prod(np.broadcast_shapes(*(each.shape for each in arrays)))
        except ValueError:
            return  # not a function that broadcasts, or it will say so itself
        if elements > MAX_ELEMENTS:
            raise ExpressionError(f"The result would have {elements} elements; take a part.")
