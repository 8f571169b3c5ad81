"""Whether a process began as the job's first one did: what its program draws before the session is in no copy."""

from __future__ import annotations

from collections.abc import Callable

from .._core.beginnings import SEEDED_BY, Beginning

__all__ = ["Began"]


class Began:
    """How this process's random numbers were when its session was made, and those of the process that began the job's training. The text of the latter is in each commit."""

    def __init__(self) -> None:
        self._own = Beginning.now()
        self.text = self._own.text()  #: of the job's first process on this rank

    def loaded(self, text: str, step: int, fresh: bool, first: bool, say: Callable[[str, str], None]) -> None:
        """State was loaded, with the text that its copy has. ``fresh``: this epoch begins a job; ``first``: this process had none before."""
        if fresh or not step or not text:
            self.text = self._own.text()
            return
        self.text = text
        if first and (names := self._own.otherwise(text)):
            calls = ", ".join(SEEDED_BY[n] for n in names)
            say(
                "the beginning",
                f"this process began with other random numbers than the job's first one, and has drawn from them before its session: what follows from that (a split of the data, "
                f"an order, values that are not registered) is not what step {step} was trained with. Call {calls} with the same number in each process, first of all",
            )
