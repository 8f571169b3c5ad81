"""On which batches of an epoch an optimizer is stepped: each fourth, say. A loop that takes that from ``enumerate(loader)`` counts from 0 again in a process that resumes in the
middle of an epoch, and its updates fall on other batches from there on. Rules alone, on counts of batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import loaders
from .optimizers import part

__all__ = ["Cadence", "Pattern"]

#: So many equal distances make a pattern.
SURE = 2


class Pattern:
    """Of one optimizer: it is stepped each so many batches of an epoch, and perhaps with the last one, which no pattern has to hold for."""

    def __init__(self, kept: Any = None) -> None:
        """``kept`` is what :meth:`value` has given."""
        self.every: int
        self.rest: int
        self.sure: int
        self.epochs: int
        self.epoch: int
        self.regular: bool
        self.every, self.rest, self.sure, self.epochs, self.epoch, self.regular = kept or (0, 0, 0, 0, -1, True)
        self._last: tuple[int, int] | None = None  # epoch and batch

    def value(self) -> list[Any]:
        """What is known, for the commit."""
        return [self.every, self.rest, self.sure, self.epochs, self.epoch, self.regular]

    def stepped(self, epoch: int, batch: int, resumed: bool) -> bool:
        """It is stepped with a batch of an epoch, counted from 1. Whether that is another one than it was in the epochs before, or in this one before the process has resumed in
        the middle of it. Where it is another one and no resume is the reason, there is no pattern."""
        last, self._last = self._last, (epoch, batch)
        if not self.regular or last == self._last:
            return False
        if self.every and batch % self.every != self.rest:
            if resumed and self.sure >= SURE and (self.epochs > 1 or self.epoch == epoch):
                return True
            self.regular = False
        elif last is not None and last[0] == epoch:
            gap = batch - last[1]
            if self.every and gap % self.every:
                self.regular = False
            elif not self.every:
                self.every, self.rest = gap, batch % gap
            self.sure = min(SURE, self.sure + 1)
        if self.every and self.epoch != epoch:
            self.epoch, self.epochs = epoch, min(2, self.epochs + 1)
        return False


class Cadence:
    """Of a session's optimizers, where one loader says which batch of which epoch it has handed out."""

    def __init__(self, optimizers: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        self._names = {id(part(o)): name for name, o in optimizers.items()}
        of = list(data.items())
        self._loader = of[0][1] if len(of) == 1 and loaders.numbers(of[0][1]) else None
        self._patterns: dict[str, Pattern] = {}
        self._resumed = -1  # the epoch in the middle of which the process has resumed
        self._found: list[tuple[str, str]] = []
        self._text, self._changed = "", False

    def loaded(self, text: str) -> None:
        """State was loaded, and the loader is where it was."""
        self._patterns = {name: Pattern(kept) for name, kept in json.loads(text).items()} if text else {}
        self._text, self._changed = text, False
        self._resumed = self._loader.epoch if self._loader is not None and self._loader.used else -1

    def text(self) -> str:
        """What is known, for the commit."""
        if self._changed:
            self._text, self._changed = json.dumps({name: p.value() for name, p in self._patterns.items()}), False
        return self._text

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step begins."""
        if self._loader is None or (name := self._names.get(id(optimizer))) is None:
            return
        epoch, batch = self._loader.epoch, self._loader.used
        if batch in (0, len(self._loader)):
            return  # of an epoch's last batch nothing is to be learnt
        pattern = self._patterns.setdefault(name, Pattern())
        was = pattern.value()
        if pattern.stepped(epoch, batch, epoch == self._resumed):
            due = pattern.rest or pattern.every
            self._found.append(
                (
                    f"{name}, by the batch",
                    f"{name} is stepped with batch {batch} of epoch {epoch}, in a process that has resumed in the middle of it; before, that was with batches {due}, "
                    f"{due + pattern.every}, {due + 2 * pattern.every} and so on of an epoch: `enumerate(loader)` begins at 0 in the rest of an epoch: use `loader.numbered()`, "
                    "which counts on, for whatever hangs on the number of a batch",
                )
            )
            pattern.regular = False  # it is said once
        self._changed |= pattern.value() != was

    def found(self) -> list[tuple[str, str]]:
        """What was seen since this was asked last: what it is of, and what to say."""
        found, self._found = self._found, []
        return found
