"""replicad under a PyTorch training loop, in three lines::

    session = replicad.Session(model=model, optimizer=optimizer, scheduler=scheduler, data=loader)
    for step in range(session.resume() + 1, steps + 1):
        ...forward, backward...
        with session.step():
            optimizer.step(); scheduler.step()
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from . import rng
from .errors import Corrupt, Error, Fenced, Mismatch, Refused, SessionState
from .rank import Order, Rank, Stats
from .state import Capsule, Leaf, materialise, model_leaves, optimizer_leaves, optimizer_values, regions, set_optimizer_values

__all__ = ["Resumed", "Session"]

log = logging.getLogger("replicad")


class Resumed(int):
    """The step whose state is in place; training goes on with the next. It says where that state came from."""

    source: str  #: "fresh", "own-ram", "peer-ram" or "durable"
    epoch: int

    def __new__(cls, order: Order, source: str) -> Resumed:
        self = super().__new__(cls, order.step)
        self.source, self.epoch = source, order.epoch
        return self

    def __repr__(self) -> str:
        return f"step {int(self)} from {self.source}, epoch {self.epoch}"


_open: Session | None = None


class Session:
    """The training state of one rank, kept by the daemons from step to step.

    ``model``, ``optimizer``, ``scheduler`` and ``scaler`` may each be one object, a list or a dict by name. ``data`` is
    what says which samples come next (a sampler or loader with ``state_dict``). ``extra`` holds further objects with
    ``state_dict`` and ``load_state_dict``. ``shared_buffers(name)`` says which buffers are equal on all ranks of the replica
    group; the others are kept for each rank. Who the rank is comes from the environment that ``replicad run`` sets, unless
    given.
    """

    def __init__(
        self,
        *,
        model: Any = (),
        optimizer: Any = (),
        scheduler: Any = (),
        scaler: Any = (),
        data: Any = (),
        extra: Mapping[str, Any] | None = None,
        shared_buffers: Callable[[str], bool] = lambda name: False,
        keep_rng: bool = True,
        rank: int | None = None,
        world: int | None = None,
        group: int | None = None,
        connect_timeout: float = 60.0,
    ) -> None:
        global _open
        if _open is not None and not _open._closed and _open._pid == os.getpid():
            raise SessionState("a session is open in this process already: close it first; one rank has one session")
        self._pid = os.getpid()
        self._closed = self._left = False
        self._models = _by_name("model", model)
        self._optimizers = _by_name("optim", optimizer)
        self._schedulers = _by_name("scheduler", scheduler)
        self._scalers = _by_name("scaler", scaler)
        self._data = _by_name("data", data)
        self._extra = dict(extra or {})
        self._keep_rng = keep_rng
        self._inside = False
        self._entering = False
        self._resumed = threading.Event()  # an epoch is open for the training thread
        self._at = -1  # the step whose state is live; -1 before resume
        self._fresh = False
        self._reached: Callable[[str, int], None] = lambda place, step: None  # replicad.testing breaks things here
        for what in (self._schedulers, self._scalers, self._data, self._extra):
            for name, obj in what.items():
                if not (callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))):
                    raise SessionState(f"{name}: {type(obj).__name__} has no state_dict and load_state_dict: give it both, or leave it out")
        self._names = {id(p): f"{m}.{k}" for m, model in self._models.items() for k, p in _parameters(model)}
        self._leaves: list[Leaf] = []
        for name, m in self._models.items():
            self._leaves += model_leaves(name, m, shared_buffers)
        for name, o in self._optimizers.items():
            materialise(o)
            self._leaves += optimizer_leaves(name, o, self._names)
        # A plateau scheduler sees a metric that may be the rank's own.
        own = {k: s for k, s in self._schedulers.items() if isinstance(s, torch.optim.lr_scheduler.ReduceLROnPlateau)}
        self._shared_objects = {k: s for k, s in (self._schedulers | self._scalers).items() if k not in own}
        self._own_objects = own | self._extra
        self._shared = Capsule("replicad.shared", False, "any", self._read_shared)
        self._before = Capsule("replicad.own", True, "any", self._read_before)
        self._after = Capsule("replicad.own.window", True, "window", self._read_after) if self._own_objects else None
        self._rank = Rank.open(rank=rank, world=world, group=group, timeout=connect_timeout)
        _open = self

    # -- what the capsules hold -----------------------------------------------------------------------------------------

    def _read_shared(self) -> Any:
        return {
            "optim": {k: optimizer_values(o, self._names) for k, o in self._optimizers.items()},
            "objects": {k: o.state_dict() for k, o in self._shared_objects.items()},
        }

    def _read_before(self) -> Any:
        return {"data": {k: o.state_dict() for k, o in self._data.items()}, "rng": rng.get() if self._keep_rng else None}

    def _read_after(self) -> Any:
        return {k: o.state_dict() for k, o in self._own_objects.items()}

    def _apply(self) -> None:
        """Gives what was loaded into the capsules to the objects."""
        shared = self._shared.value()
        for k, o in self._optimizers.items():
            set_optimizer_values(o, self._names, shared["optim"][k])
        for k, o in self._shared_objects.items():
            o.load_state_dict(shared["objects"][k])
        if self._after is not None:
            own = self._after.value()
            for k, o in self._own_objects.items():
                o.load_state_dict(own[k])
        before = self._before.value()
        for k, o in self._data.items():
            o.load_state_dict(before["data"][k])
        if self._keep_rng and before["rng"] is not None:
            rng.set(before["rng"])

    # -- life -----------------------------------------------------------------------------------------------------------

    def resume(self, timeout: float | None = None) -> Resumed:
        """Brings the newest step that the job can go on from into the registered state, and returns it: 0 in a fresh job.

        It waits until every rank is there; where the state came from is in the result's ``source``. It is called once
        before the loop, and again after :class:`replicad.Fenced` by those who stay in the process.
        """
        self._check()
        if self._inside:
            raise SessionState("resume inside of a step: leave the step first")
        self._resumed.clear()
        if not self._rank.attached:
            self._attach()
        while True:
            try:
                order = self._rank.join(timeout)
                if order.initialise:
                    self._write_all()
                    self._rank.seal_initial()
                    self._fresh = True
                    continue
                self._rank.load()
                self._apply()
                self._reached("resume", order.step)
                self._rank.ready(timeout)
            except Fenced:
                continue  # a further fault: another order will come
            except Corrupt as err:
                self._rank.fail(str(err))
                continue
            break
        source = "fresh" if self._fresh and order.step == 0 else order.source
        self._at, self._fresh = order.step, False
        log.info("replicad: rank %d of %d resumes at step %d from %s, epoch %d", order.rank, order.world, order.step, source, order.epoch)
        self.order = order
        self._resumed.set()
        return Resumed(order, source)

    def _attach(self) -> None:
        table = regions(self._leaves)
        table += [c.region for c in (self._shared, self._before, self._after) if c is not None]
        try:
            self._rank.register(table)
            self._rank.attach()
        except Refused as err:
            if "geometry" in str(err):
                raise Mismatch(str(err)) from None
            raise

    def _write_all(self) -> None:
        for c in (self._shared, self._before, self._after):
            if c is not None:
                c.write()

    @contextmanager
    def step(self, *, updated: bool = True, timeout: float = 30.0) -> Iterator[int]:
        """The optimizer step: gradients are final when it begins, and it holds everything that the step changes (optimizer,
        scheduler, scaler, counters) and no collective. :class:`Fenced` when the epoch is closed: nothing was changed.

        ``updated=False`` for a step that runs no update (overflow). An exception inside leaves the state torn: it is
        reported, and the rank goes back to the step before.
        """
        self._check()
        if self._inside:
            raise SessionState(f"step {self._at + 1} is open already: steps don't nest")
        if self._at < 0:
            raise SessionState("a step before resume: call session.resume() first")
        step = self._at + 1
        self._entering = True
        try:
            self._before.write()
            self._rank.step_enter(step, timeout)
            self._inside = True
        finally:
            self._entering = False
        try:
            self._reached("window", step)
            yield step
            self._reached("updated", step)
            self._shared.write()
            if self._after is not None:
                self._after.write()
            self._rank.step_exit(step, updated=updated)
            self._at = step
        except BaseException as err:
            if self._at != step:
                self._rank.freeze_good()
                if not isinstance(err, (KeyboardInterrupt, SystemExit)):
                    self._tell(f"in the optimizer step {step}: {type(err).__name__}: {err}")
            raise
        finally:
            self._inside = False

    def _tell(self, text: str) -> None:
        try:
            self._rank.fail(text)
        except Error as err:
            log.warning("replicad: the daemon did not hear of this: %s (%s)", text, err)

    def leave(self, timeout: float | None = None) -> None:
        """Says that training is done; returns when it is on every rank. :class:`Fenced` when one was lost before that."""
        self._check()
        if not self._left:
            self._rank.leave(timeout)
            self._left = True

    def close(self) -> None:
        """Ends the session. The daemon keeps the state: a rank that didn't leave is missed, and started again."""
        global _open
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            self._rank.close()
            if _open is self:
                _open = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._closed:
            self.leave()
        self.close()

    def _in_step(self) -> bool:
        """Whether the training thread is between the beginning of step() and the start of its capture: no restart is raised
        there."""
        return self._inside or self._entering

    def _check(self) -> None:
        self._rank._handle()  # another process, or closed

    # -- what is known --------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> Rank:
        """The rank underneath: rendezvous, fence, statistics."""
        return self._rank

    @property
    def at(self) -> int:
        """The step whose state is live."""
        return self._at

    @property
    def committed(self) -> int:
        """The step that the whole job would go back to now."""
        return self._rank.committed

    def stats(self) -> Stats:
        """Captures of this rank and what they cost."""
        return self._rank.stats()


def _by_name(kind: str, given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return {f"{kind}.{k}": v for k, v in given.items()}
    if isinstance(given, (list, tuple)):
        return {f"{kind}.{i}": v for i, v in enumerate(given)} if len(given) != 1 else {kind: given[0]}
    return {} if given is None else {kind: given}


def _parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    from .state import clean

    for k, p in model.named_parameters():
        yield clean(k), p
