"""Where engines are found: one for each framework in `tensortap.frameworks`, loaded when it is needed."""

from __future__ import annotations

from importlib import import_module

from tensortap.frameworks import FRAMEWORKS, Framework
from tensortap.seam.base import Engine

__all__ = ["FRAMEWORKS", "load_engine"]


def load_engine(framework: Framework) -> Engine:
    """The engine of a framework, which is imported by this.

    Raises:
        ModuleNotFoundError: the framework is not installed.
    """
    engine: Engine = import_module(f"tensortap.engines.{framework.name}.engine").ENGINE
    return engine
