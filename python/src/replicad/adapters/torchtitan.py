"""torchtitan's Trainer: ``checkpoint=replicad.torchtitan.Checkpoint.Config(inner=...)``, a checkpoint manager around the one that writes to disk.

A step begins where the Trainer asks its manager before ``optimizers.step()``, and ends behind the schedulers' step. It is over when the loop asks for the next batch: its log, its
save and a validation belong to it, and are done again with it where they were interrupted. What the manager can't see of the Trainer is patched on the instances.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any

from torch.utils.hooks import RemovableHandle

from .. import moves
from .._torch import loaders
from ..errors import SessionState, Unsupported
from ..session import Session
from ._loop import want
from ._texts import packed, unpacked

want("torchtitan", "0.3")

import tyro
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtitan.components.checkpointer import BaseCheckpointManager, CheckpointManager
from torchtitan.components.checkpointer.base import TRAIN_STATE

__all__ = ["Checkpoint"]

#: How many bytes a loader's state may take: the rest of a text, of which torchtitan keeps three numbers of four bytes for each token.
ROOM = 8 << 20


class Checkpoint(BaseCheckpointManager):  # type: ignore[misc]
    """Keeps what a Trainer trains; its session is ``trainer.checkpointer.session``, once ``train`` has begun.

    ``inner`` is the manager that writes to disk: what is said of folders and intervals is said of it. A job without a state of its own begins with what ``inner`` loads.
    ``longest`` is how many seconds a save or a validation may take, before a rank in it counts as one that hangs; ``room`` is for texts that are read ahead. With
    ``enable=False`` nothing is kept, and ``inner`` works as it did.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):  # type: ignore[misc]
        """What the Trainer asks its manager's configuration (``interval``, ``load_step`` ...) is what ``inner`` says."""

        enable: bool = True
        """Whether the job is kept. ``inner`` loads and saves by its own word"""

        inner: BaseCheckpointManager.Config = field(default_factory=CheckpointManager.Config)
        """The manager that writes to disk"""

        longest: float = 3600.0
        """Seconds that a save or a validation may take"""

        room: int = ROOM
        """Bytes that texts read ahead may take on a rank: 12 a token of its longest document"""

        said: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
        """What was taken from ``inner``"""

        def __post_init__(self) -> None:
            for f in fields(BaseCheckpointManager.Config):
                if f.name == "enable":
                    continue
                given, theirs = getattr(self, f.name), getattr(self.inner, f.name)
                default = f.default if f.default_factory is MISSING else f.default_factory()
                if given not in (default, self.said.get(f.name, default), theirs):
                    raise ValueError(f"checkpoint.{f.name}={given!r}: the manager that writes to disk is checkpoint.inner: say checkpoint.inner.{f.name}={given!r}")
                setattr(self, f.name, theirs)
                self.said[f.name] = theirs

    def __init__(self, config: Config, *, dataloader: Any, model_parts: list[Any], optimizers: Any, lr_schedulers: Any, states: dict[str, Any], **others: Any) -> None:
        self.enable = True  # else nobody would call the inner manager
        self.session: Session | None = None
        self._keeps, self._longest, self._room = config.enable, config.longest, config.room
        self._trainer = states[TRAIN_STATE]
        self._states = {name: o for name, o in states.items() if name != TRAIN_STATE}
        self._loader, self._parts, self._optimizers, self._schedulers = dataloader, model_parts, optimizers, lr_schedulers
        self._inner = config.inner.build(dataloader=dataloader, model_parts=model_parts, optimizers=optimizers, lr_schedulers=lr_schedulers, states=states, **others)

    @property
    def save_future(self) -> Any:
        """Of the inner manager's save that is under way."""
        return getattr(self._inner, "save_future", None)

    def _wait_for_saving(self) -> None:
        self._inner.maybe_wait_for_saving()

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        with self._paused():
            return bool(self._inner.save(curr_step, last_step))

    def _load(self, step: int = -1) -> bool:
        """From peers, else from the durable tier, else what the inner manager finds."""
        if self.session is not None:
            raise SessionState("a second train(): this manager has a session of the first one: build another Trainer, in another process")
        if not hasattr(self._trainer, "batch_generator"):
            raise Unsupported(f"Checkpoint: {type(self._trainer).__name__} has no batch_generator, where torchtitan's Trainer asks for batches: let it be one of those")
        train, feed = _Train(self._trainer), _Feed(self._loader, self._room)
        self.session = session = Session(
            list(self._parts),
            list(self._optimizers),
            scheduler=list(self._schedulers),
            data={"train": feed},
            extra={TRAIN_STATE: moves(train), **{name: moves(o) for name, o in self._states.items()}},
            enabled=None if self._keeps else False,
        )
        self._patch(train, feed)
        loaded = False

        def otherwise() -> int:
            nonlocal loaded
            loaded = bool(self._inner.load(step))
            train.ended()
            return int(self._trainer.step)

        resumed = session.resume(otherwise=otherwise)
        train.counts = True
        return bool(resumed) or loaded

    def _maybe_wait_for_staging(self) -> None:
        """The gradients are clipped, and the optimizers' step is next."""
        self._inner.maybe_wait_for_staging()
        assert self.session is not None
        self.session.step_begin()

    def _close(self) -> None:
        """At the end of the training, or in the handler of an exception: who ends the program by that tells the daemon."""
        error = sys.exc_info()[1]
        try:
            if self.session is not None and error is not None:
                self.session.step_end(error)
            elif self.session is not None:
                self.session.leave()
                self.session.close()
        finally:
            self._inner.close()

    # -- what the manager can't see ----------------------------------------------------------------------------------------------

    def _patch(self, train: _Train, feed: _Feed) -> None:
        trainer, validator = self._trainer, getattr(self._trainer, "validator", None)
        self._schedulers.step = functools.partial(self._stepped, train, self._schedulers.step)
        trainer.batch_generator = functools.partial(_batches, feed, trainer.batch_generator)
        if validator is not None:
            validator.validate = functools.partial(self._validate, validator.validate)

    def _stepped(self, train: _Train, step: Callable[[], None]) -> None:
        """The schedulers' step is the end of the step; collectives of the log follow."""
        step()
        train.ended()
        assert self.session is not None
        self.session.step_end()

    def _validate(self, validate: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        with self._paused():
            validate(*args, **kwargs)

    def _paused(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.session is None else self.session.pause(self._longest)


def _batches(feed: _Feed, generate: Callable[[Iterable[Any]], Iterator[Any]], of: Iterable[Any]) -> Iterator[Any]:
    """In the place of Trainer.batch_generator."""
    return generate(feed if of is feed.loader else of)


class _Train:
    """The Trainer's counters as they were when its step ended: the next step is counted before the loop asks for a batch, where the session looks, and puts back what it has."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.counts = False  #: the loop has begun
        self.ended()

    def ended(self) -> None:
        self._state = copy.deepcopy(self._trainer.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not self.counts:
            self._trainer.load_state_dict(dict(state))
            self.ended()


class _Feed:
    """The Trainer's loader, and the session's word of when it is asked for a batch. torchtitan's own state of it is a pickle, which nothing here reads."""

    def __init__(self, loader: Any, room: int = ROOM) -> None:
        if getattr(loader, "generator", None) is not None:
            raise Unsupported("Checkpoint: a loader with a generator of its own: let its dataset shuffle, as torchtitan's do, or leave the generator out")
        self.loader, self.room = loader, room
        self._hooks: OrderedDict[int, Callable[[Any], None]] = OrderedDict()

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)  # draws a seed
        while True:
            for hook in list(self._hooks.values()):
                hook(self)
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def before_a_batch(self, hook: Callable[[Any], None]) -> RemovableHandle:
        """As of replicad.data.Loader."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def state_dict(self) -> dict[str, Any]:
        return dict(packed(self._state(), self.room, "checkpoint.room"))

    def _state(self) -> Any:
        o = self.loader
        if not isinstance(o, StatefulDataLoader):
            return loaders.state(o)
        if o._iterator is None:  # asked for its state it would make one, and draw
            return o.next_iter_state or {}
        return StatefulDataLoader.state_dict(o)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        o, state = self.loader, unpacked(dict(state))
        StatefulDataLoader.load_state_dict(o, state) if isinstance(o, StatefulDataLoader) else loaders.set_state(o, state)
