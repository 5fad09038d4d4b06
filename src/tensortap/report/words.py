"""How healths look."""

from __future__ import annotations

from tensortap.analyze.health import Health

__all__ = ["health_piece"]


def health_piece(health: Health | None) -> tuple[str, str]:
    """The health of a tensor and its style.

    >>> health_piece(None)
    ('not recorded', 'dim')
    """
    if health is None:
        return "not recorded", "dim"
    return str(health), "red" if health.is_bad else "green"
