"""Options and metadata of a run, between our form and TensorFlow's messages."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensortap.seam.options import RunMetadata, RunOptions

__all__ = ["is_message", "options_to_message", "our_options"]

_v1 = tf.compat.v1
_NUMBERS = ("trace_level", "timeout_in_ms", "inter_op_thread_pool")
_FLAGS = ("output_partition_graphs", "report_tensor_allocations_upon_oom")


def is_message(value: Any) -> bool:
    """Whether options or metadata are TensorFlow's own."""
    return isinstance(value, (_v1.RunOptions, _v1.RunMetadata))


def our_options(options: Any) -> RunOptions:
    """Options of a caller in our form; a copy, so that nobody changes the caller's."""
    ours = RunOptions()
    if options is not None:
        if not isinstance(options, (RunOptions, _v1.RunOptions)):
            raise TypeError(
                f"options= takes RunOptions of tensortap or of TensorFlow, got {type(options).__name__}."
            )
        ours.merge_from(options)
    return ours


def options_to_message(options: RunOptions) -> Any:
    """What TensorFlow is to know of options: everything but what we look after ourselves, watches and taps."""
    message = _v1.RunOptions()
    for each in options.native:
        if not isinstance(each, _v1.RunOptions):
            raise TypeError(f"Options of the type {type(each).__name__} are none of TensorFlow's.")
        message.MergeFrom(each)
    for name in _NUMBERS:
        setattr(message, name, max(int(getattr(message, name)), int(getattr(options, name))))
    for name in _FLAGS:
        setattr(message, name, bool(getattr(message, name) or getattr(options, name)))
    return message


def check_metadata(metadata: Any) -> None:
    """Refuse what is no metadata."""
    if metadata is not None and not isinstance(metadata, (RunMetadata, _v1.RunMetadata)):
        raise TypeError(
            f"run_metadata= takes RunMetadata of tensortap or of TensorFlow, got {type(metadata).__name__}."
        )
