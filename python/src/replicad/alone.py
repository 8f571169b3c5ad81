"""A session of a program that no launcher started: it keeps nothing, so that the same file runs by itself and in a notebook."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from ._core.life import Resumed
from ._core.rank import Order, Rank, Stats
from ._core.waiting import place
from ._torch.objects import by_name
from ._torch.stepped import Stepped
from ._torch.steps import Steps, step_of
from ._torch.wrappers import clean
from .errors import SessionState

__all__ = ["Alone", "launched"]

log = logging.getLogger("replicad")


def launched() -> bool:
    """Whether some launcher started this process as one of several: `replicad run`, `replicad exec`, torchrun."""
    return any(os.environ.get(name) for name in ("REPLICAD_RANK", "REPLICAD_WAIT_FD", "RANK"))


class Alone(Stepped):
    """A :class:`replicad.Session` that is off. It counts steps; nothing is copied, fenced or restored."""

    enabled = False

    def __init__(self, model: Any = (), *, warns: bool = False) -> None:
        super().__init__()
        self._given = {"model": model}
        rank, world = place()
        self.order = Order(
            initialise=False, epoch=1, step=0, incarnation=1, source="fresh",
            rank=rank, world=world, group=0, job=uuid.UUID(int=0),
        )  # fmt: skip
        if warns:
            log.warning(
                "replicad: this program trains without replicad, and nothing is kept, as no launcher started it: `replicad run -- python ...` does (enabled=False hides this)"
            )

    def __repr__(self) -> str:
        return f"<replicad.Session, off, at step {self._at}>"

    def rebind(self, *, model: Any = None, **others: Any) -> None:
        """Takes the models for :meth:`trained` and :meth:`frozen`."""
        if model is not None:
            self._given = {"model": model}

    def resume(self, timeout: float | None = None, *, otherwise: Callable[[], int] | None = None, replace: Collection[str] = ()) -> Resumed:
        """The step that it is at: at first 0, or that of the program's own checkpoint."""
        self._abandon()
        loads = self._at < 0 and otherwise is not None
        if self._at < 0:
            self._at = 0 if otherwise is None else step_of(otherwise())
        self._life.resume = resumed = Resumed(self.order, "otherwise" if loads else "fresh", self._at)
        self._told_of.resumed(resumed)
        return resumed

    def _abandon(self) -> None:
        if self._held.drop() is not None:
            self._life.inside, self._follows.named = None, []

    @property
    def resumed(self) -> bool:
        """Whether :meth:`resume` was called."""
        return self._at >= 0

    def rest(self) -> None:
        """Nothing waits for it."""

    @property
    def at(self) -> int:
        """The step whose state is live."""
        return self._at

    @contextmanager
    def step(self, *, updated: bool = True, timeout: float = 30.0) -> Iterator[int]:
        """Counts."""
        if self._at < 0:
            raise SessionState("a step before resume: call session.resume() first")
        self._outside("a step")
        mark = self._life.inside = object()
        try:
            yield self._at + 1
            self._at += 1
            self._follows.ended()
        finally:
            if self._life.inside is mark:
                self._life.inside = None

    def _go_on(self, loop: Steps) -> int:
        if self._at < loop.step:
            self._at = loop.step
        return self._at + 1

    def _check(self) -> None:
        pass

    def _between(self, what: str) -> None:
        if self._at < 0:
            raise SessionState(f"{what} before resume: call session.resume() first")

    def done(self, name: str) -> None:
        """As under a launcher, but that no copy had it due."""
        self._between("done")
        self._follows.done(name, self._at)

    def commit(self, timeout: float | None = None) -> int:
        """The step that it is at."""
        return self._at

    def save(self, *, wait: bool = False, keep: str = "", timeout: float | None = 600.0) -> int:
        """Writes nothing: the step that it is at."""
        return self._at

    def note(self, **values: object) -> None:
        """Nobody writes it down."""

    def metric(self, **values: Any) -> None:
        """Nobody writes it down."""

    @contextmanager
    def offload(self, timeout: float = 60.0) -> Iterator[int]:
        """Moves nothing."""
        yield 0

    @contextmanager
    def pause(self, most: float) -> Iterator[None]:
        """Nobody takes it for a hang."""
        yield

    def leave(self, timeout: float | None = None) -> None:
        """Nobody waits for it."""
        self._life.left = True

    def close(self) -> None:
        """There is nothing to end."""
        self._life.closed = True

    def _failed(self, err: BaseException) -> None:
        pass

    @property
    def rank(self) -> Rank:
        """There is none."""
        return self._none("rank")

    @property
    def parts(self) -> NoReturn:
        """:class:`SessionState`: nothing is kept."""
        self._none("parts")

    @property
    def committed(self) -> int:
        """The step that it is at."""
        return self._at

    @property
    def noticed(self) -> dict[str, str]:
        """Nothing is looked at."""
        return {}

    def trained(self) -> dict[str, torch.Tensor]:
        """The parameters that ask for a gradient, by name."""
        return {n: p for n, p in self._parameters() if p.requires_grad}

    def frozen(self) -> dict[str, torch.Tensor]:
        """The parameters that ask for none, by name."""
        return {n: p for n, p in self._parameters() if not p.requires_grad}

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        models = by_name("model", self._given["model"])
        for name, model in models.items():
            prefix = "" if len(models) == 1 else f"{name}."
            yield from ((prefix + clean(model, k), p) for k, p in model.named_parameters())

    def explain(self) -> NoReturn:
        """:class:`SessionState`: nothing is kept."""
        self._none("explain")

    def feasible(self, timeout: float = 5.0) -> NoReturn:
        """:class:`SessionState`: nothing is kept."""
        self._none("feasible")

    def stats(self) -> Stats:
        """Zeros."""
        return Stats(0, 0, 0, 0, 0, 0.0, 0)

    def _none(self, what: str) -> NoReturn:
        raise SessionState(f"{what}: this session is off, because no launcher started the program or enabled=False was given: start the program with `replicad run`")
