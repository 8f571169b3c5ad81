"""Which loaders a plain loop trains from, so that a batch for an evaluation is not taken for the beginning of the next iteration."""

from __future__ import annotations

from typing import Any

__all__ = ["Feeds"]


class Feeds:
    """``train`` has the loaders that the last step was fed from, by name; none before the first."""

    def __init__(self) -> None:
        self.train: set[str] = set()
        self._asked: list[str] = []  # since the last step's block, or the last forward of an evaluation
        self._then: dict[str, Any] = {}  # what was the rank's own when such a loader was asked first

    def ended(self) -> None:
        """A step's block has ended."""
        self._asked, self._then = [], {}

    def asked(self, name: str) -> bool:
        """A loader is asked for a batch. Whether the loop trains from it, as far as is known."""
        self._asked.append(name)
        return not self.train or name in self.train

    def note(self, name: str, own: Any) -> None:
        """What is the rank's own now: the loop may train from this loader from here on."""
        self._then.setdefault(name, own)

    def noted(self, name: str) -> bool:
        """Whether that is known of a loader."""
        return name in self._then

    def evaluated(self) -> None:
        """A forward that is none of training: what was asked for was for it."""
        self._asked, self._then = [], {}

    def trains(self) -> Any:
        """A training forward, or a step: what was asked for was for it. It returns what was noted then; None where nothing was."""
        own = self._then.get(self._asked[-1]) if self._asked else None
        if self._asked:
            self.train = set(self._asked)
        self._then = {}
        return own
