"""The planted faults, one module for each kind."""

from tests.corpus.planted import PLANTS
from tests.corpus.plants import arrived, backward, forward, masks, optimizer, overflow, structure

__all__ = ["PLANTS", "arrived", "backward", "forward", "masks", "optimizer", "overflow", "structure"]
