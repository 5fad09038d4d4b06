"""What a program does where nothing is seen: it is said when it happens first, and counted.

Operations outside of functions are executed one by one, and not watched. Gradients that a tape computes there tell of
it, because who trains computes some. They are looked at as a whole: that something is bad is known then, and where the
program asked for it, but not which operation made it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import backprop, context

from tensortap.engines.tensorflow.lines import caller

__all__ = ["Unseen"]

log = logging.getLogger("tensortap.hooks")

_GRADIENTS = "gradients computed outside of a tf.function, which were not watched"


class Unseen:
    """Tells of what is not seen, each kind once.

    Args:
        seen: the counts of the program.
    """

    def __init__(self, seen: Any) -> None:
        self._seen = seen
        self._told: set[str] = set()
        self._leave: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Learn of gradients that are computed eagerly from now on."""
        theirs: Any = backprop.GradientTape.gradient

        @functools.wraps(theirs)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            found = theirs(tape, target, sources, *args, **kwargs)
            if context.executing_eagerly():
                try:
                    self._computed(target, sources, found)
                except Exception:  # ours: the program has what it asked for
                    log.debug("Looking at gradients failed.", exc_info=True)
            return found

        def leave() -> None:
            if backprop.GradientTape.gradient is gradient:
                backprop.GradientTape.gradient = theirs

        backprop.GradientTape.gradient, self._leave = gradient, leave

    def end(self) -> None:
        """No more of it."""
        leave, self._leave = self._leave, lambda: None
        leave()

    def compiled(self, function: Any) -> None:
        """A function is compiled as a whole."""
        self._tell(
            "compiled",
            f"{getattr(function, '_name', 'A function')} is compiled as a whole (jit_compile=True): "
            "what happens inside of it is not seen.",
        )

    def _computed(self, target: Any, sources: Any, gradients: Any) -> None:
        if "eager" not in self._told:
            self._tell(
                "eager",
                f"GradientTape.gradient is called outside of a tf.function{_place()}: operations that are executed one "
                "by one are not seen, only whether loss and gradients are finite. With @tf.function around the step, "
                "all of it is.",
            )
        number = self._seen.unseen.get(_GRADIENTS, 0)
        self._seen.unseen[_GRADIENTS] = number + 1
        if "bad" not in self._told:
            bad = next(_bad(target, sources, gradients), None)
            if bad is not None:
                self._tell(
                    "bad", f"{bad} in call {number} of GradientTape.gradient outside of functions{_place()}."
                )

    def _tell(self, what: str, sentence: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", sentence)


def _place() -> str:
    line = caller()
    return "" if line is None else f" ({line.file}:{line.line})"


def _bad(target: Any, sources: Any, gradients: Any) -> Iterator[str]:
    """Sentences about what is not finite, the loss before its gradients."""
    named = [("The loss", each) for each in tf.nest.flatten(target)]
    pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=False)
    named += [(f"The gradient of {_name(source)}", each) for source, each in pairs]
    for name, found in named:
        values = getattr(found, "values", found)  # of rows, as an embedding has
        if not isinstance(values, tf.Tensor) or not values.dtype.is_floating or "CPU" not in values.device:
            continue
        array = values.numpy()
        finite = np.isfinite(array if array.dtype.kind == "f" else array.astype(np.float32))
        if not finite.all():
            yield f"{name} is not finite: {finite.size - finite.sum():,} of {finite.size:,} values"


def _name(source: Any) -> str:
    for attribute in ("path", "name"):  # of Keras, of TensorFlow; tensors have none here
        try:
            return str(getattr(source, attribute)).removesuffix(":0")
        except AttributeError:
            continue
    return "a tensor"
