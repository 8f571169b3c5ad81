"""What batches are made with, ahead of the steps that use them: a trainer's own loader reads one batch further than its loop is."""

from __future__ import annotations

from typing import Any

from .. import rng
from ..session import current

__all__ = ["Makes"]


class Makes:
    """The process's generators, and what the makers of batches carry (datasets, collators), as of a moment: before a batch is made, ahead of the steps."""

    def __init__(self, *roots: str) -> None:
        self._roots = roots

    def get(self) -> dict[str, Any]:
        """As they are now."""
        now = current()
        return {"rng": rng.get(), "fed": {} if now is None or not now.enabled else now.parts.objects.implicit.part(self._roots)}

    def set(self, state: Any) -> None:
        """The inverse."""
        rng.set(state["rng"])
        if (now := current()) is not None and now.enabled:
            now.parts.objects.implicit.set_part(self._roots, state["fed"])
