"""replicad under a PyTorch training loop: :class:`Session` shows the program."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist

from . import alone, rng
from ._core import admin, behind, ending, latest, provenance, remarks, saving
from ._core import connection as connections
from ._core.feasible import Feasible, feasible
from ._core.life import Resumed
from ._core.orders import Orders
from ._core.rank import Order, Rank, Stats
from ._core.region import Region
from ._core.remarks import Remarks
from ._core.reports import Reports
from ._torch import begun, conversion, device, groups, later, loaders, unwind
from ._torch.broadcasts import Broadcasts
from ._torch.declared import Declared
from ._torch.derived import Derived
from ._torch.explain import Explanation, explain
from ._torch.grown import Grown, Grows, More
from ._torch.held import behind_closure
from ._torch.hooks import Hook
from ._torch.kept import How, Kept
from ._torch.layout import sharded
from ._torch.loop import Ended
from ._torch.objects import Objects
from ._torch.offload import Offload
from ._torch.optimizers import Carried, part, scalars_in_place, undoing
from ._torch.parts import Parts, Standing
from ._torch.reloaded import putting_back
from ._torch.replacing import Replacing
from ._torch.staging import Staging
from ._torch.state import Full
from ._torch.stepped import Stepped
from ._torch.steps import Steps, step_of
from ._torch.tensors import some
from ._torch.trained import Trained
from ._torch.trees import differences
from ._torch.watch import Watch
from ._torch.wrappers import reshard, stale, taken_down
from .errors import Canceled, Corrupt, Error, Fenced, Mismatch, Refused, RegroupNeeded, SessionState, StaleProgram, Timeout

__all__ = ["Resumed", "Session"]

log = logging.getLogger("replicad")

#: A rank that leaves waits so many seconds for a place to copy its last step to, and as long as a mirror may take to get a copy at so many bytes a second.
SEAL, SLOWEST = 30.0, 32 << 20
#: For so many seconds ranks may stand until a step is on disk: a day, the longest pause that there is. A fault ends it.
SAVING = 86400.0
#: So many steps after a recovery a new process says what a restart would lack.
SAID = 8


def current() -> Session | None:
    """The session that this process made last, for replicad's own modules."""
    return cast("Session | None", latest.session)


def _on_its_way_out() -> None:
    """The first exit handler to run, of those that were there before the session: the others may take their time."""
    if (session := current()) is not None and not session._life.behind:
        session._reports.ending()


@atexit.register
def _at_end() -> None:
    """The last but who was there before. A session that stays leaves; of another one it says why the job goes on. A program that an exception has ended says so itself."""
    if hasattr(sys, "last_value"):
        return
    if (session := current()) is None or session._life.closed or session._life.left or session._pid != os.getpid() or session._at < 0:
        return
    if session._life.behind:
        behind.ends(session)
    else:
        log.error(
            "replicad: this program ends at step %d without session.leave(), so that its rank is missed and started again: call it, or use `with replicad.Session(...)`",
            session._at,
        )


def _ended_by(err: BaseException) -> None:
    """Tells the daemon of the exception that ends this program."""
    if (session := current()) is not None:
        session._failed(err)
        session._reports.ending()


ending.say_before_the_end(_ended_by)


class Session(Stepped):
    """The training state of one rank, kept by the daemons from step to step::

        with replicad.Session(model, optimizer, scheduler=scheduler, data=loader) as session:
            session.resume()
            for step in session.steps(last):
                ...  # forward, backward
                with session.step():
                    optimizer.step(); scheduler.step()

    The block leaves the job when it ends; without it, call :meth:`leave` and :meth:`close`. A rank that ends otherwise is started again.

    ``model``, ``optimizer``, ``scheduler`` and ``scaler`` may each be one object, a list or a dict by name. ``data`` is
    what says which samples come next (a sampler or loader with ``state_dict``). ``extra`` holds further objects with
    ``state_dict`` and ``load_state_dict``; :func:`replicad.moves` and :func:`replicad.own` say more of one. ``shared_buffers(name)`` says of a buffer, under the name that
    messages give it, whether it is equal on all ranks of the replica
    group; the others are kept for each rank. ``debug`` hashes every tensor at the end of a step and the beginning of the next, and
    names what changed between, and random numbers that are drawn where a restart would draw them again. ``strict`` refuses what is only
    named otherwise: state that changes and is in no copy (:class:`Mismatch`, in the step or forward that finds it). ``staging``
    puts host memory between host tensors and the arena, as device tensors always have it: it costs a copy, and lets
    :meth:`rebind` put a model that was made anew in the old one's place. ``kept_dtype`` names tensors (``{"model.*": torch.float32}``) whose copies have
    another, wider floating-point type than they have here: what was kept of a float32 model is then rounded to this bfloat16 one when it is loaded, and logged;
    without it that is a :class:`Mismatch`. ``was``, ``fresh`` and ``dropped`` declare what of the program was changed on purpose since the generation was written from which
    ``replicad run --from`` begins: ``was={"head.*": "lm_head.*"}`` for names that were others, ``fresh=["adapter.*"]`` for what was not there, ``dropped=["old.*"]`` for what is no
    more. ``derived`` names tensors that follow from others and are in no copy (``{"model.*": rebuild}``: 16-bit weights of fp32 shards): ``rebuild()`` makes them anew after
    each load, before :meth:`resume` returns. Who the rank is comes from the environment that
    ``replicad run`` sets, or from ``connection``: what :func:`replicad.connect` returned, where that was needed before, or was told otherwise.
    Where no launcher started the program, or with ``enabled=False``, the session is off: the same file trains by itself, and nothing is kept. ``enabled=True`` refuses that.
    """

    def __new__(cls, model: Any = (), optimizer: Any = (), *, enabled: bool | None = None, connection: Rank | None = None, **others: Any) -> Session:
        """A session, or one that is off (:mod:`replicad.alone`)."""
        if enabled or (enabled is None and (connection is not None or alone.launched())):
            return super().__new__(cls)
        if unknown := set(others) - set(inspect.signature(Session.__init__).parameters):
            # As under a launcher.
            raise TypeError(f"Session() got an unexpected keyword argument {sorted(unknown)[0]!r}")
        # Session.register has it as one.
        return alone.Alone(model, warns=enabled is None)  # type: ignore[return-value]

    def __init__(
        self,
        model: Any = (),
        optimizer: Any = (),
        *,
        enabled: bool | None = None,
        scheduler: Any = (),
        scaler: Any = (),
        data: Any = (),
        extra: Mapping[str, Any] | None = None,
        shared_buffers: Callable[[str], bool] = lambda name: False,
        keep_rng: bool = True,
        debug: bool = False,
        strict: bool = False,
        staging: bool = False,
        kept_dtype: Mapping[str, torch.dtype] | None = None,
        was: Mapping[str, str] | None = None,
        fresh: Iterable[str] = (),
        dropped: Iterable[str] = (),
        derived: Mapping[str, Callable[[], object]] | None = None,
        connection: Rank | None = None,
    ) -> None:
        if (other := current()) is not None and not other._life.closed and other._pid == os.getpid():
            raise SessionState("a session is open in this process already: call close() on it first, as one rank has one session")
        super().__init__()
        self._rebound = False  # since the last resume
        self._modes: list[bool] | None = None  # of the models' modules, at the end of the last step, or as they were given; none before the first resume
        self._carried = Carried(())
        self._torn = -1  # the step that was begun and not ended
        self._say_at: int | None = 0  # after which step it is said what a restart would lack; None: it was
        self._offloaded: Offload | None = None
        self._unwinder: unwind.Unwinder | None = None
        self._fresh = False
        self._replacing = Replacing()
        self._broadcasts = Broadcasts()
        self._unkept: set[str] = set()  # what moves and can't be kept
        self._asks_room = True  # where small state takes more than half of its room
        self._grows: Grows | None = None  # what is to be kept from the step that is open on, or why it can't be
        self._remarks = Remarks()
        self._declared = Declared(was, fresh, dropped)
        self._otherwise = False  # the program's own checkpoint was loaded
        self._begun = ""  # from which generation of another run, and what of it is not exact
        self._saves = 0  # in this epoch
        self._watch = Watch(debug, strict)
        self.reached: Callable[[str, int], None] = lambda place, step: None  #: where the step is; replicad.testing breaks things here
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "data": data, "extra": extra}
        self._hooks: list[Any] = []
        self._grouped: dict[str, weakref.ref[Any]] = {}  # at the last resume: the default process group, and what hung on groups, by name
        self._strict = strict
        self._kept = kept = Kept(Objects(given, shared_buffers, keep_rng, derived=Derived(derived)), How(self._read_own, staging, kept_dtype or {}))
        self._watch.keep(kept.shared, kept.objects, kept.trained)
        there = connection or connections.opened()
        self._rank = there or Rank.open()
        self._reports = Reports(self._rank, self._life)
        try:
            self._orders = Orders(self._rank)
            if recipe := self._rank.recipe():
                self._kept = kept = kept.grew(kept.objects.grew(Grown.unpack(recipe)))
                self._watch.keep(kept.shared, kept.objects, kept.trained)
            kept.bind(self._rank, self._watch.say)
            rng.session_devices = self._generators_on
            groups.settle(self._rank, {s.name: s.spread for s in kept.sharded})
            self._hook()
        except BaseException:
            rng.session_devices = None
            for hook in self._hooks:
                hook.remove()
            if there is None:
                self._rank.close()
            raise
        later.listen()
        latest.session = self
        atexit.unregister(_on_its_way_out)
        atexit.register(_on_its_way_out)

    @property
    def _objects(self) -> Objects:
        return self._kept.objects

    @property
    def _staging(self) -> Staging:
        return self._kept.staging

    @property
    def _trained(self) -> Trained:
        return self._kept.trained

    def _hook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = [m.register_forward_pre_hook(Hook(self._on_forward)) for m in self._objects.modules()]
        self._hooks += [part(o).register_step_pre_hook(Hook(self._on_optimizer)) for o in self._objects.optimizers.values()]
        self._scalars = [scalars_in_place(o) for o in self._objects.optimizers.values()]
        self._hooks += [part(o).register_step_post_hook(put_back) for o, put_back in zip(self._objects.optimizers.values(), self._scalars, strict=True)]
        if self._staging.on_device:
            self._hooks += [part(o).register_step_post_hook(Hook(self._on_stepped)) for o in self._objects.optimizers.values()]
        self._hooks += [o.before_a_batch(Hook(self._on_batch)) for o in self._objects.data.values() if loaders.tells(o)]
        self._loop.asks = any(map(loaders.tells, self._objects.data.values()))

    def rebind(self, *, model: Any = None, optimizer: Any = None, scheduler: Any = None, scaler: Any = None, data: Any = None, extra: Mapping[str, Any] | None = None) -> None:
        """Puts objects that were made anew (in a block that is run again, say) in the place of those that the session was
        made with; call :meth:`resume` next. Models and optimizers need a session with ``staging=True``, or device tensors.
        :class:`Mismatch` where they are not alike, or tensors of a model or optimizer that stays are no longer those which copies are made of, by name: the session
        then has what it had. :class:`SessionState` inside of a step, and for models and optimizers whose tensors are registered where they lie."""
        self._check()
        self._outside("rebind")
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "data": data, "extra": extra}
        given = {kind: objects for kind, objects in given.items() if objects is not None}
        if ("model" in given or "optimizer" in given) and not self._staging.whole:
            raise SessionState("rebind: this session registered its tensors in place: make it with staging=True, or keep model and optimizer outside of the block")
        if not {"model", "optimizer"} & given.keys():
            self._unmoved()
        old, new = self._objects, self._objects.replaced(given)
        if new.leaves is not old.leaves:
            self._kept.layout.replaced(sharded(self._rank.world, new))
            if self._at >= 0 and not self._orders.resting:  # what the session has said is good is in the old tensors; the new ones are of no step
                self._settle()
                self._rank.freeze_good()
            self._modes = new.modes()
        self._kept.rebound(new)
        self._rebound = self._at >= 0
        self._hook()
        self._watch.keep(self._kept.shared, new, self._kept.trained)

    def _generators_on(self) -> list[int]:
        """The devices whose generators are kept: those of the tensors, which are this rank's own; the one in use where all lie in host memory."""
        return [d.index or 0 for d in self._staging.devices] or [device.cuda.current_device()]

    # -- what the capsules hold -----------------------------------------------------------------------------------------

    def _read_own(self, objects: Objects, how: str = "", loader: str = "", then: Any = None) -> dict[str, Any]:
        """What is the rank's own, of a step that is over. ``how`` it is known to be over says whose the numbers are that were drawn since its block ended: the step's, or, where a
        batch is asked for, of both: a process that resumes draws what its loop draws before it asks, and has at that place what an undisturbed one has. ``then`` is what this
        returned when it was not known yet."""
        if then is not None:
            return self._watch.texts() | then  # type: ignore[no-any-return]
        own = objects.own() | {"asked": None, "asks": loader, "due": list(self._follows.due), "lacks": list(self._watch.lacking), "replaced": self._replacing.kept}
        own |= {"broadcasts": self._broadcasts.value(), **self._watch.texts()}
        if self._loop.ended is not None and how in ("a batch", "a forward", "a step"):
            now, own["rng"] = own["rng"], self._loop.ended.generators
            own["asked"] = now if how == "a batch" else None
        return own

    def _on_forward(self, module: torch.nn.Module, *_: Any) -> None:
        if self._at >= 0 and not self._life.over and self._pid == os.getpid() and not (self._staging.on_device and device.capturing()):  # to capture a graph is no step's forward
            self._present("a forward")
            if taken_down(module):
                raise stale("a forward: the model's DistributedDataParallel")
            self._broadcasts.forward(self._objects.models, module)
            if training := module.training and torch.is_grad_enabled():
                self._kept.loaded.check(self._at, "the first forward", self._watch.say)
            over, then = self._loop.forward(training)
            if over:
                self._over("a forward", then=then)
            if self._loop.ended is None and not self._follows.due:
                self._watch.forward(training)
            for layer in self._trained.merged():
                self._watch.say(
                    layer, f"{layer} is merged with its adapters: unmerging leaves rounding in base weights that are kept once; evaluate unmerged, or put a copy of them back"
                )

    def _on_optimizer(self, optimizer: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """An optimizer's step begins. With a closure it updates nothing before that has returned, and a step may begin in it."""
        self._kept.lacking.stepped(optimizer)
        if self._life.inside is not None:
            return None
        behind = behind_closure(args, kwargs or {}, lambda: self._inside_of_a_step(optimizer))
        if behind is None:
            self._inside_of_a_step(optimizer)
        return behind

    def _inside_of_a_step(self, optimizer: Any) -> None:
        if self._life.inside is not None or self._pid != os.getpid():
            return
        if self._life.resumed.is_set() and not (self._life.closed or self._life.over) and self._torn <= self._at:
            raise SessionState(
                f"{type(optimizer).__name__}.step() outside of `with session.step()`: the copy of step {self._at} may be under way, and would have a part of this update. "
                "Call step() of every registered optimizer inside of the block, or between session.step_begin() and session.step_end()"
            )

    def _on_stepped(self, *_: Any) -> None:
        self._kept.live.stepped()

    def _apply(self) -> Any:
        """Gives what was loaded into the capsules to the objects, and returns what is the rank's own."""
        shared, own = self._kept.shared.value(), self._kept.own.value()
        self._objects.set_common(shared)
        self._trained.set(shared["trained"])
        self._objects.set_own(own)
        self._broadcasts.set(self._objects.models, own.get("broadcasts", {}))
        self._kept.set_tensors()
        self._objects.derived.rebuild()
        self._follows.due, self._follows.named = list(own["due"]), []
        return own

    # -- what a restart would lack --------------------------------------------------------------------------------------

    def _say_lacking(self) -> None:
        """In each process once, on one rank: what is known to be missing. :class:`Mismatch` with ``strict``, on all."""
        self._say_at = None
        if (self._rank.number == 0 or self._strict) and (lacks := self._kept.lacking.at_resume()):
            if self._strict:
                raise Mismatch(f"a restart would lack: {'; '.join(lacks)} (strict=True)")
            log.warning("replicad: a restart would lack: %s: session.explain() says more", "; ".join(lacks))

    def _look_lacking(self, step: int) -> None:
        """When a step has ended: what is seen over the whole life."""
        if self._say_at is not None and step >= self._say_at:
            self._say_lacking()
        for name, text in self._kept.lacking.step(step):
            self._watch.lacks(name, text)

    def iterated(self, loader: Any) -> None:
        """A loader of this package that nobody keeps is about to hand out batches."""
        if self.resumed and self._pid == os.getpid() and (found := self._kept.lacking.iterated(loader)) is not None:
            self._watch.lacks(*found)

    # -- life -----------------------------------------------------------------------------------------------------------

    def resume(self, timeout: float | None = None, *, otherwise: Callable[[], int] | None = None, replace: Collection[str] = ()) -> Resumed:
        """Brings the newest step that the job can go on from into the registered state, and returns it: 0 in a fresh job.

        ``otherwise`` is called where the job has no state, in memory or in the durable tier, and was not told to begin from another run: it puts the program's own checkpoint into
        the objects that the session has, and returns the step that this is of. The job counts from there. All ranks return the same step, or the job ends and names both.

        ``replace=("lr",)`` has these hyperparameters stay as this program was written, where the job goes on with its own otherwise. Schedulers go on from the new rate as if they
        had begun with it. The job remembers what it was asked for: the same values again change nothing. :class:`Invalid` for a name that no optimizer has.

        It waits until every rank is there; where the state came from is in the result's ``source``. It is called once
        before the loop, and again after :class:`replicad.Fenced` by those who stay in the process. :class:`Timeout` after ``timeout`` seconds (None: never),
        :class:`Mismatch` where this program has another state than the job, or values of the copy are too large for the type here, by name,
        :class:`StaleProcessGroup` for a model whose process groups were taken down, :class:`StaleProgram` where this process has got more to keep in a step that is gone,
        :class:`RegroupNeeded` where ranks that had met before have to meet again, :class:`Stopped` when the job has ended.

        It stops the rank, in an epoch that is open too: no step can be taken before it has returned. The daemons close such an epoch within a few
        seconds; after :class:`Timeout` call it again. A :class:`Mismatch` that ends the program ends the job (exit status 78): a new process would only meet it again.
        """
        self._check()
        self._present("resume")
        if self._held:
            self._abandon()
        self._outside("resume")
        self._told_of.lost(self._at)
        self._ungrouped()
        self._unmoved()
        self._replacing.asks(self._objects, replace)
        self._reports.late()
        self._life.stops()
        if not self._rank.attached:
            self._attach()
        elif not self._orders.resting and not self._rebound:
            self._settle()
        self._loop.ended = self._grows = None
        self._watch.reset()
        order, own = self._in_place(timeout, otherwise)
        resumed = self._goes_on(order, own)
        self._life.resume = resumed
        self._told_of.resumed(resumed)
        return resumed

    def _in_place(
        self,
        timeout: float | None,
        otherwise: Callable[[], int] | None,
    ) -> tuple[Order, dict[str, Any]]:
        """Carries out orders until one of them is ready. It returns that, and what is the rank's own."""
        while True:
            try:
                order = self._order(timeout)
                if order.initialise:
                    own, leads = self._begin(order, otherwise)
                    self._kept.write(*(("", "", own) if own is not None else ()))
                    self._kept.live.everything()
                    (self._rank.seal_initial if leads else self._rank.seal_own)()
                    self._fresh = True
                    continue
                self._kept.live.drain(unwind.free_alone)
                self._rank.load()
                self._kept.layout.check()
                self._staging.back(order.step)
                if why := conversion.too_large(self._staging.overflown):
                    raise Mismatch(why)
                reshard(self._objects.models.values())
                own = self._apply()
                self._replacing.loaded(own, order.step, self._objects)
                if self._at >= 0:
                    self._trained.refreeze()
                self._objects.drop_gradients()
                self._modes = self._modes or self._objects.modes()
                # A restart may be raised in an evaluation, before the first step too.
                self._objects.set_modes(self._modes)
                self.reached("resume", order.step)
                self._rank.ready(timeout)
                return order, own
            except RegroupNeeded:
                raise  # nothing is fenced, and no order will come before all have met again
            except Fenced as err:
                further: Exception | Fenced = err
            except Corrupt as err:
                self._rank.fail(str(err))
                further = err
            except Mismatch as err:
                self._reports.fault(str(err))
                raise
            if self._rank.met is not None:  # who was lost took part in the groups that are made already
                why = "the epoch that the ranks had gathered for was closed before it was opened"
                raise RegroupNeeded(f"{why}, and all ranks gather again: let this end the process, or the block") from further
            # a further fault: another order will come

    def _goes_on(self, order: Order, own: dict[str, Any]) -> Resumed:
        """The state of an order is in place, and its epoch is open: training goes on from there."""
        source = ("from" if self._begun else "otherwise" if self._otherwise else "fresh") if self._fresh else order.source
        first, self._at = self._at < 0, order.step
        self._fresh, self._torn, self._rebound = False, -1, False
        self._reports.resumed()
        self._kept.live.begin()
        self._kept.alarm.reset()
        self._carried = Carried(())
        self._rank.met = None  # the gathering has its epoch
        self._loop.resumed(order.step, own)
        if lacked := own["lacks"]:
            log.warning("replicad: step %d lacks %s: a restart is not the same run; session.noticed of the process that ran it said what to do", order.step, some(lacked))
            self._watch.lacking = self._watch.lacking | dict.fromkeys(lacked)
        self._kept.lacking.cadence.loaded(own.get("cadence", ""))
        begins = source in ("fresh", "from", "otherwise")
        self._watch.began.loaded(own.get("began", ""), order.step, begins, first, self._watch.say)
        self._watch.rates.loaded(own.get("rates", ""), order.step, begins)
        if source != "fresh":
            self._replacing.say(self._objects, self._kept.lacking.scheduled, self._rank.number, first and source != "otherwise", self._watch.rates.by_hand)
            for text in conversion.rounded(self._staging.converted):
                log.warning("replicad: step %d: %s", order.step, text)
        told = self._begun if source == "from" else self._orders.origin(source)
        log.info("replicad: rank %d of %d resumes at step %d from %s, epoch %d%s", order.rank, order.world, order.step, source, order.epoch, told and f": {told}")
        self.order = order
        self._remarks.back(order.step)
        self._remarks.note("note", self._replacing.notes())
        self._remarks.tell(self._rank)
        self._saves = 0
        there = dist.is_available() and dist.is_initialized()
        self._grouped = {name: weakref.ref(o) for name, o in (("", dist.group.WORLD), *self._objects.on_groups())} if there else {}
        if first and (source in ("fresh", "from", "otherwise", "durable") or self._strict):
            self._say_lacking()
        elif first:  # to look takes a tenth of a second, for which no recovery is to wait
            self._say_at = order.step + SAID
        self._watch.resumed()
        self._kept.loaded.taken(begins or not order.step)
        self._life.resumed.set()
        if self._unwinder is None:
            self._unwinder = unwind.Unwinder(self)
            self._unwinder.start()
        return Resumed(order, source, told=told)

    def _begin(self, order: Order, otherwise: Callable[[], int] | None) -> tuple[dict[str, Any] | None, bool]:
        """Loads the initial state from the generation that the job was told to begin from, or otherwise, if it was. It returns what is the rank's own, where it comes from it, and
        whether the rank has loaded what its group has in common."""
        if not (origin := self._rank.origin()):
            self._otherwise = otherwise is not None
            if otherwise is not None:
                back = putting_back(self._objects.optimizers.values())
                step = step_of(otherwise())
                back()
                self._unmoved()
                self._rank.begin_at(step)
            if self._declared and order.rank == 0:
                log.warning("replicad: was, fresh and dropped change nothing, as the job did not begin from a generation (replicad run --from URL): leave them out")
            return None, True
        leads = origin.get("seals", order.rank) == order.rank
        try:
            with begun.opened(origin) as source:
                inexact, own = begun.begin(source, self._kept, self._declared, order.rank, order.world, leads)
                same = source.world == order.world
        except Corrupt as err:  # a new process would only read the same
            raise Mismatch(
                f"step {order.step} of {origin['url']}/{origin['place']} is damaged: {err}. Begin a new job from another generation (--from {origin['url']}@STEP)"
            ) from err
        else:
            self._begun = f"step {source.step} of {origin['url'].rstrip('/')}/{origin['place']}" + ("" if same else f", of {source.world} ranks")
        if inexact:
            self._begun += f"; {'; '.join(inexact)}"
        if declared := self._declared.lines():
            self._begun += f"; declared: {', '.join(declared)}"
            self._remarks.note("note", {"declared": ", ".join(declared)[: remarks.TEXT]})
        if (inexact or declared) and order.rank == 0:
            log.warning("replicad: this run begins from %s; all else is as it was there", self._begun)
        return own, leads

    def _order(self, timeout: float | None) -> Order:
        try:
            return self._orders.next(timeout)
        except Timeout:
            if self._at < 0 or self._rank.fenced:
                raise
            raise Timeout(
                f"resume: epoch {self.order.epoch} is still open, and this rank has stopped in it. The daemons close the epoch within seconds, and only then send the next "
                "order: call session.resume() again. No step can be taken before it returns"
            ) from None

    def last_moment(self) -> None:
        """The good word is about to be frozen, by :mod:`replicad.inprocess`."""
        if self._torn < 0 and self._loop.ended is None and self._at >= 0:
            self._kept.live.last_moment(self._at)

    def rest(self) -> None:
        """Says that this rank has stopped, without waiting for what comes next: the daemons plan the next epoch, and copy live
        state that is worth it, while this process takes down what hung on the last one. :meth:`resume` goes on from there.

        The registered tensors must not change until resume. Called by :mod:`replicad.inprocess`.
        """
        self._check()
        if self._orders.resting or self._at < 0:
            return
        self._abandon()
        self._life.stops()
        self._settle()
        self._orders.rest()
        self._told_of.lost(self._at)

    def _ungrouped(self) -> None:
        """Refuses a model whose groups went down with the epoch: it would fail in its first forward, on every rank, in every run of the block."""
        if not self._grouped or (dist.is_initialized() and self._grouped[""]() is dist.group.WORLD):
            return
        for name, now in self._objects.on_groups():
            if name in self._grouped and self._grouped[name]() is now:
                raise stale(f"resume: {name}")

    def _unmoved(self) -> None:
        """Refuses, before anything is loaded, tensors that are not those which copies are made of: the state would be loaded beside them."""
        for put_back in self._scalars:  # an optimizer's step that was broken off
            put_back()
        try:
            self._trained.check_places()
        except Grows as err:
            if self._at < 0:
                raise
            raise StaleProgram(f"{err}. That was in a step that the job goes back over: this process ends, and a new one takes its place") from None

    @property
    def resumed(self) -> bool:
        """Whether an epoch is open for this rank, as far as it knows."""
        return self._life.resumed.is_set() and not self._rank.fenced

    def _settle(self) -> None:
        """Before the rank stops: the daemon may ask for a copy of the live state."""
        if self._torn < 0 and self._loop.ended is None:
            self._kept.live.settle(self._at)

    def _attach(self) -> None:
        try:
            self._rank.register(table := self._kept.table())
            self._kept.registered(self._rank, table)
            self._rank.attach()
            self._remarks.note("version", provenance.versions() | loaders.versions(self._objects.data))
            self._remarks.tell(self._rank, again=True)
        except Refused as err:
            if "geometry" in str(err):
                raise Mismatch(str(err) + conversion.hint(str(err))) from None
            raise

    @contextmanager
    def step(self, *, updated: bool = True, timeout: float = 30.0) -> Iterator[int]:
        """The optimizer step: gradients are final when it begins, and it holds everything that the step changes (optimizer,
        scheduler, scaler, counters) and no collective (a ``ZeroRedundancyOptimizer`` has some: a peer that is lost in them leaves
        the step torn). :class:`Fenced` when the epoch is closed: nothing was changed. :class:`SessionState` where steps
        are nested, before :meth:`resume` or after :meth:`leave`; :class:`Mismatch` where what is trained is no longer what was registered, by name.

        ``updated=False`` for a step that runs no update (overflow). It is a step all the same, and gradients are not kept: micro-batches whose gradients
        are added up lie before one block. An exception inside leaves the state torn: it is
        reported, and the job goes back to the newest step that it has whole: the one before, or where steps are faster than commits an older one.
        """
        self._between("a step")
        if self._life.over:
            raise SessionState(
                f"a step after {'leave' if self._life.left else 'the last one'}: rank {self._rank.number} has reported that it is done. Call leave() after the last step"
            )
        if (loop := self._loop.over_steps) is not None and self._at >= loop.step > 0:
            raise SessionState(
                f"a second step in the iteration of session.steps() that is for step {loop.step}: an iteration is one step, and a restart begins with a whole one. Put both "
                "updates into one block (what is drawn in it is kept), or count the iterations yourself, without steps()"
            )
        self._follows.check(self._at)
        self._watch.rates.begins(self._at, self._kept.loaded.asked, self._watch.say)
        self._kept.loaded.check(self._at, "the first step", self._watch.say)
        self._over("a step", then=self._loop.enters())
        step = self._at + 1
        self._life.entering = True
        self._broadcasts.trained()
        try:
            if self._trained.changed():
                self._watch.say(
                    "trained",
                    f"what is trained (requires_grad, active adapters) changed after step {self._at}: a restart from it would not have that; do it in `with session.step()`",
                )
            self._watch.entering(step)
            self._carried.look(self._watch.say, step)
            self._objects.gradients.look(self._watch.say, step, self._objects.optimizers.values(), self._objects.names)
            self._watch.samples(self._kept.lacking.doubtful({k: loaders.state(o) for k, o in self._objects.data.items()}))
            self._kept.live.enter(step, timeout)
            self._life.inside = mark = object()
        finally:
            self._life.entering = False
        try:
            self.reached("window", step)
            yield step
            self.reached("updated", step)
            self._look()
            self._carried = Carried(() if updated else self._objects.optimizers.values())
            self._objects.gradients.ended(self._objects.optimizers.values())
            self._watch.rates.ended()
            self._modes = self._objects.modes()
            self._follows.ended()
            self._at, tells = step, self._loop.tells
            self._loop.block_ended(Ended(step, updated, self._objects.generators() if tells else None))
            self._look_lacking(step)
            if self._follows.due or not tells:
                self._over("the block's end")
        except BaseException as err:
            if self._life.inside is mark and self._torn != step:
                self._tear(step, err)
            raise
        finally:
            if self._life.inside is mark:
                self._life.inside = None

    def _look(self) -> None:
        """Refuses tensors that are not those which copies are made of, but for what the job can take up."""
        try:
            if not self._trained.check():
                self._objects.look()
        except Grows as err:
            self._grows = err

    def _over(self, how: str, loader: str = "", then: Any = None) -> None:
        """The step whose block has ended is over, with what followed it: it is copied from now on. ``then`` is what was the rank's own when it was, where that was before."""
        if (ended := self._loop.ended) is None:
            return
        self._life.entering = True
        try:
            if how != "the block's end":
                self._look()
            if how == "a step" and self._loop.asks and self._loop.over_steps is None:  # what the next step did before is not told from what followed this one
                self._loop.asks = False
                log.info("replicad: step %d began without a batch of a registered Loader and without a forward: from now on a step is over when its block ends", ended.step + 1)
            self._staging.small()
            if more := self._more(how, loader, then):
                self._grow(ended, more)
            else:
                self._keep(ended, how)
        except BaseException as err:
            self._tear(ended.step, err)
            raise
        finally:
            self._life.entering = False

    def _keep(self, ended: Ended, how: str) -> None:
        """Has the step copied."""
        self._remarks.lacks(self._rank, ", ".join(self._watch.lacking))
        self._remarks.epochs(ended.step, {name: o.epoch for name, o in self._objects.data.items() if isinstance(getattr(o, "epoch", None), int)})
        self._remarks.tell(self._rank)
        self._kept.live.exit(ended.step, updated=ended.updated)
        self._loop.ended = None
        known = how in ("an iteration", "a batch")
        drawn = ended.generators if how in ("a forward", "a step") else None if known else self._objects.generators()
        self._watch.exited(ended.step, drawn, known)

    # -- what there is to keep on the way ---------------------------------------------------------------------------------

    def _more(self, *of: Any) -> More | None:
        """Packs the small values of the step that is over. It returns what there is to keep that was not, if there is."""
        grows, self._grows = self._grows, None
        moving = self._moving()
        try:
            self._kept.write(*of)
            tight, full = self._asks_room and self._kept.tight, False
        except Full:
            tight = full = True
        anew = self._kept.loaded.anew
        return More(grows, moving, full, of, anew) if grows is not None or moving or tight or anew else None

    def _moving(self) -> list[str]:
        """The frozen parameters that have begun to move and that the job can take up. Those that it can't are named."""
        if self._trained.merges:
            return []
        moving = [n for n in self._watch.moving() if n not in self._unkept]
        can = self._trained.movable(moving)
        for name in moving:
            if name not in can:
                self._unkept.add(name)
                self._watch.lacks(name, f"{name} asks for no gradient and changes, and is kept once: let it ask for one while the session is made, or change a copy of it")
        return can

    def _grow(self, ended: Ended, more: More) -> None:
        """Has the job take up what this session is to keep from now on, at the step that is over, by an epoch of its own. All ranks do so after the same step: they run one
        program. Until then nothing here is another: a fault on the way goes back to what there was."""
        was = replace(self._objects.grown, rooms=self._kept.rooms)
        grown = self._trained.grown(was, more.moving)
        grown.rooms = self._kept.wanted  # what a new process would make room for by itself is not this
        try:
            new, table = self._ask_to_grow(ended, grown)
        except Refused as err:
            self._life.resumed.set()
            if more.must:
                raise Mismatch(f"{more.grows or 'small state has outgrown its room'}. The job can't take it up at step {ended.step}: {err}") from None
            self._without(ended, more, err)
            return
        self._take_up(new, table, *more.of)
        if self._rank.number == 0:
            log.warning("replicad: step %d: the job keeps more from here on, in epoch %d: %s", ended.step, self.order.epoch, "; ".join(grown.lines(was, more.anew)))

    def _ask_to_grow(self, ended: Ended, grown: Grown) -> tuple[Kept, list[Region]]:
        """What the job has taken up, and what is registered of it. Where it does not, optimizers have what they had: an in-process resume may go back to before."""
        self._kept.live.sound()
        undo = undoing(self._objects.optimizers.values())
        try:
            new = self._kept.grew(self._objects.grew(grown))
            new.bind(self._rank, self._watch.say)
            self._life.resumed.clear()  # the epoch is closed by this, which is no fault
            self._rank.step_exit(ended.step, updated=ended.updated, good=False)
            self._rank.grow(table := new.table(), grown.pack())
        except BaseException:
            undo()
            raise
        return new, table

    def _without(self, ended: Ended, more: More, err: Refused) -> None:
        """Training goes on with what there was: what moves is in no copy, and what has grown has room left. Neither is asked for again. This step is not kept."""
        self._loop.ended = None
        for name in more.moving:
            self._unkept.add(name)
            self._watch.lacks(name, f"{name} asks for no gradient and changes, and the job can't keep it from step {ended.step} on: {err}")
        for name in more.anew:
            self._watch.lacks(
                name, f"{name} is kept once, and was put in place behind session.resume(): the job can't take it up at step {ended.step}: {err}. Put it before the session"
            )
        if not (more.moving or more.anew):
            self._asks_room = False
            self._watch.say(
                "room",
                f"small state takes more than half of the room that it has, and the job can't make more of it at step {ended.step}: {err}. Training ends where it takes more than "
                "all of it: have it grow on all ranks alike, or keep histories out of it",
            )
        self._watch.exited(ended.step, None, known=True)

    def succeed(self, given: Mapping[str, Any], fits: list[list[Any]]) -> None:
        """Has the job keep the objects of another fit (:mod:`replicad.adapters._fits`) from here on, in a step of its own, on all ranks. For replicad's own. :class:`Refused`
        where the job can't take them up."""
        self._life.behind = 0.0
        self._rank.pause(0)
        self._between("a fit")
        new = self._kept.grew(self._objects.others(given, Grown(fits=fits)))
        new.bind(self._rank, self._watch.say)
        new.objects.grown.rooms = new.rooms  # a new process has other small values when it begins
        recipe, table = new.objects.grown.pack(), new.table()
        self._kept.live.enter(self._at + 1, 30.0)
        self._life.resumed.clear()  # the epoch is closed by this, which is no fault
        self._rank.step_exit(self._at + 1, updated=False, good=False)
        self._rank.grow(table, recipe)
        self._at, self._modes, self._carried = self._at + 1, new.objects.modes(), Carried(())
        self._take_up(new, table)

    def _take_up(self, new: Kept, table: list[Region], *of: Any) -> None:
        """The epoch of a growth is opened: the live state is what it begins with."""
        self._kept = new
        new.registered(self._rank, table)
        self._hook()
        self._watch.keep(new.shared, new.objects, new.trained)
        new.write(*of)
        self._loop.ended = None
        self._order(None)
        self._kept.live.everything()
        self._rank.seal_initial()
        order = self._order(None)
        self._rank.load()
        self._staging.back(order.step)
        self._rank.ready(None)
        self._kept.live.begin()
        self.order = order
        self._life.resumed.set()

    def _tear(self, step: int, err: BaseException) -> None:
        """A step can't be kept: it is no state that anybody may go on from."""
        self._torn, self._loop.ended, self._at = step, None, step - 1
        self._rank.freeze_good()
        text = f"in the optimizer step {step}: {type(err).__name__}: {err}"
        if isinstance(err, GeneratorExit):
            self._reports.later(text)  # the collector may raise it, on a thread that must not wait for a daemon
        elif not isinstance(err, (KeyboardInterrupt, SystemExit)):
            self._reports.fault(text)

    # -- loops ----------------------------------------------------------------------------------------------------------

    def _go_on(self, loop: Steps) -> int:
        """An iteration ends, and the next one begins."""
        if self._loop.over_steps is not loop:
            raise SessionState("the next step of a loop over session.steps() that was begun before session.resume(): begin another loop")
        self._between("the next step of session.steps()")
        if self._at < loop.step:
            self._watch.say(
                "iterations without a block",
                f"iteration {loop.step} had no `with session.step()`: it counts as a step that updates nothing, so that the count goes on as it does without a fault",
            )
            with self.step(updated=False):
                pass
        if self._loop.ended is not None:
            self._over("an iteration")
        elif loop.step:
            self._watch.late(loop.step)
        self._objects.go_on(self._loop.begins_with(first=not loop.step), first=not loop.step)
        return self._at + 1

    def _on_batch(self, loader: Any) -> None:
        """A registered loader is asked for a batch."""
        if self._pid != os.getpid() or self._life.inside is not None or not self._life.resumed.is_set():
            return
        name = next((k for k, o in self._objects.data.items() if o is loader), "")
        match self._loop.batch(name):
            case "over":
                self._over("a batch", name)
            case "note":
                self._loop.feeds.note(name, self._read_own(self._objects, "a batch", name))
            case "then":
                self._as_then(self._loop.then())

    def _as_then(self, own: Mapping[str, Any]) -> None:
        """The loop of a process that has resumed asks for its first batch: it has what it had there when the copy was made. What the loop has done at its top is in the copy."""
        now = self._objects.generators()
        if own["asked"] != own["rng"] and now not in (own["asked"], own["rng"]):
            self._watch.lacks(
                "random numbers",
                f"random numbers were drawn after step {self._at} and at the loop's top: a process that resumes draws the latter from where the former began; loop over "
                "session.steps()",
            )
        self._objects.go_on(own["asked"])
        self._objects.set_objects(own["objects"])
        if not self._replacing.moved and (shared := self._kept.shared.changed()) is not None:
            for path in differences(self._kept.shared.value(), shared, ""):
                self._watch.lacks(
                    path,
                    f"{path} changed between resume and the first batch: the copy of step {self._at} has the change already if the loop makes it at its top, so that it is made "
                    "twice now; loop over session.steps(), where an iteration begins before that",
                )

    def done(self, name: str) -> None:
        """What followed the step has been done. :class:`SessionState` where it was not due."""
        self._between("done")
        self._follows.done(name, self._at)
        if not self._follows.due:
            self._watch.followed()
            self._objects.implicit.settled()
        self._loop.followed(self._objects.generators())

    def _between(self, what: str) -> None:
        """What can be done only between two steps."""
        self._check()
        self._present(what)
        self._outside(what)
        if self._at < 0 or self._rebound or not self._life.resumed.is_set():
            after = ", after a rebind" if self._rebound else ", after this rank has stopped" if self._at >= 0 else ""
            raise SessionState(f"{what} before resume{after}: call session.resume() first, inside of the block if replicad.inprocess wraps one")
        self._whole()

    def _whole(self) -> None:
        if self._torn > self._at:
            self._reports.late()
            raise Fenced(f"step {self._torn} was broken off inside of the optimizer step, which leaves the state half updated: call session.resume() next")

    def _abandon(self) -> None:
        """The open step, if there is one, will never end: whatever its block does from now on is nobody's business."""
        if self._life.inside is not None:
            self._life.inside = None  # first: a block of hooks that is dropped ends by that, and would report a torn step, to the epoch that comes next
            by_hooks = self._held.drop() is not None
            log.log(logging.WARNING if by_hooks else logging.ERROR, "replicad: step %d was never %s: its update is not kept", self._at + 1, "ended" if by_hooks else "left")
            self._torn = self._at + 1
            self._rank.freeze_good()

    def commit(self, timeout: float | None = None) -> int:
        """Waits until the step whose state is live is committed on the whole job, and returns it: before a planned stop, say. All ranks call it, between two steps, with
        nothing of the next one done yet, and last in an iteration of :meth:`steps`: what follows it there is not done again if it is interrupted, unless :meth:`follow` names it.

        Every step is captured behind the next forward by itself, and most are committed; this one is, whatever ``--cadence`` says and
        however fast steps are. :class:`Fenced` when a rank is lost before that; :class:`Timeout` after ``timeout`` seconds, and
        :class:`Canceled` where the step's own part found no room when it began and may have changed since: the state is then what it was,
        and training may go on. A rank that never calls it is taken for a hang like any that stands still.
        """
        self._between("commit")
        early = self._loop.ended is not None and self._loop.over_steps is not None
        self._over("a commit")
        self._kept.live.commit(self._at, timeout)
        self._watch.committed(self._at, early)
        return self._at

    def note(self, **values: object) -> None:
        """Notes texts of this run, at any time: ``session.note(lr=0.1, data="v2")``. Durable checkpoints that are written from now on have them, ``replicad ckpt show``
        prints them, and a run that goes on from one says which of its own are other ones. Where several ranks note the same name the lowest one's counts.
        At most 64 names of 64 bytes, texts of 256; :class:`Invalid` beyond that, with nothing noted."""
        self._check()
        self._remarks.note("note", values)
        self._remarks.tell(self._rank)

    def metric(self, **values: Any) -> None:
        """Says numbers of the step whose state is live (inside of ``with session.step()``: of that step): ``session.metric(loss=loss.item())``. A durable checkpoint has
        of each name the newest that is of its step or an earlier one; ``replicad ckpt ls`` shows them, and the best checkpoints can be kept by one.
        Where several ranks say the same name the lowest one's counts. A value that is no finite number is left out, and so is the one before it: checkpoints then have
        no such metric until it is a number again, and a warning says so, once for each name. At most 64 names of 64 bytes; :class:`Invalid` beyond that, with nothing said;
        :class:`SessionState` before :meth:`resume`. A tensor on a device is waited for."""
        self._check()
        if self._at < 0:
            raise SessionState("metric before resume: a metric belongs to a step: call session.resume() first")
        self._remarks.metric(self._at if self._life.inside is None else self._at + 1, values)
        self._remarks.tell(self._rank)

    def save(self, *, wait: bool = False, keep: str = "", timeout: float | None = 600.0) -> int:
        """Has the step whose state is live written to the durable tier now, and returns it: at the end of an epoch, say. All ranks call it, between two steps.

        It waits until the step is committed, as :meth:`commit` does; the daemons then write it from their memory while training goes on. ``wait=True`` returns once it
        is on disk; nobody is taken for a hang meanwhile. ``keep="epoch 3"`` keeps that checkpoint for good, for that reason; ``replicad ckpt unpin`` lets it go. The
        session asks the daemon's admin socket: :class:`Refused` on all ranks where that is closed to this process, and where nothing can be written, with the reason;
        :class:`Timeout` after ``timeout`` seconds (None: never), and the daemons go on with the write; :class:`Fenced` when a rank is lost before that."""
        remarks.text("save", "keep", keep)
        step = self.commit(timeout)
        with self.pause(SAVING if wait else 2 * saving.ORDER):
            self._saves += 1
            saving.save(self._rank, self.order.job, step, keep, call=self._saves, wait=wait, timeout=timeout)
        return step

    @contextmanager
    def offload(self, timeout: float = 60.0) -> Iterator[int]:
        """Gives the memory of staged tensors back while the block runs, an evaluation or another model, and yields how many bytes that
        is; their values are in the stages in host memory, and in the arena. Those are tensors on a device, and host tensors of a session with
        ``staging=True``; others are registered where they lie and stay there. No step, no forward of the session's models and no
        collective over their tensors inside; they may have other addresses afterwards. Gradients are the caller's (``zero_grad()``
        gives theirs back). :class:`SessionState` where nothing is staged, inside of a step and before :meth:`resume`; :class:`Fenced` when the epoch is closed."""
        self._between("offload")
        if not self._staging:
            raise SessionState("offload: this session registered every tensor in place in host memory, and can't move it: make the session with staging=True")
        self._over("offload")
        self._kept.live.ready(self._at, "offload")
        with contextlib.suppress(Canceled):  # it has no private part; nothing is being copied all the same
            self._kept.live.seal(self._at, timeout)
        self._watch.look("they were offloaded", self._at)
        self._life.moving = True  # a restart is raised in the block, not while memory is on its way
        try:
            self._offloaded = offloaded = Offload(self._staging)
            try:
                offloaded.release()
                self._life.moving = False
                yield offloaded.nbytes
            finally:
                self._life.moving = True
                offloaded.back()
                self._watch.rewritten()
                self._offloaded = None
                self._kept.live.forget()
        finally:
            self._life.moving = False

    def _present(self, what: str) -> None:
        if self._offloaded is not None:
            raise SessionState(f"{what} inside of `with session.offload()`: the memory of the tensors is released in it. Leave the block first")

    @contextmanager
    def pause(self, most: float) -> Iterator[None]:
        """What takes longer than a step, at most ``most`` seconds: evaluation, compilation, a checkpoint of one's own. Without
        it a rank that stands still for ten times its longest recent step (a minute at least) is taken for a hang. :class:`Fenced` when the epoch is closed."""
        self._check()
        self._whole()
        if self._life.resumed.is_set() and self._rank.fenced:
            raise Fenced(f"pause: epoch {self.order.epoch} is closed: call session.resume() next")
        self._rank.pause(most)
        try:
            yield
        finally:
            with contextlib.suppress(Error):
                self._rank.pause(self._life.behind)

    def _failed(self, err: BaseException) -> None:
        """Tells the daemon of an exception that this program or its block ends by, unless it has heard, or the exception came of a peer's end."""
        if not isinstance(err, Exception) or not self._reports.wanted:
            return
        self._held.tear(err)
        self._reports.late()
        if self._torn > self._at or self._rank.fenced or ending.of_a_collective(err):
            return
        where = f"behind the last step, {self._at}" if self._life.behind else f"in step {self._at + 1}" if self._at >= 0 else "in resume"
        self._reports.fault(f"{where}: {ending.text(err)}")

    def leave(self, timeout: float | None = None) -> None:
        """Says that training is done; returns when it is on every rank, and their last steps are alike. :class:`Fenced` when one was lost, or
        found to differ, before that."""
        self._check()
        self._outside("leave")
        self._whole()
        if not self._life.left:
            self._over("leave")
            self._settle()
            if self._at >= 0:
                patience = SEAL + sum(r.nbytes for r in self._kept.table()) / SLOWEST
                with contextlib.suppress(Canceled, Timeout):  # copied, it is compared with the others', and can be the one that all go back to
                    self._kept.live.seal(self._at, patience if timeout is None else min(patience, timeout))
            self._rank.leave(timeout)
            self._life.left = True

    def close(self) -> None:
        """Ends the session. The daemon keeps the state: a rank that didn't leave is missed, and started again, which is logged."""
        if not self._life.closed and self._pid == os.getpid():
            if self._at >= 0 and not self._life.left and sys.exc_info()[0] is None and not self._rank.fenced:
                self.leave() if self._life.behind else log.error(
                    "replicad: session.close() at step %d without session.leave(): this rank is missed when its program ends, and started again, "
                    "for ever if it has nothing left to do: call session.leave() first",
                    self._at,
                )
            self._abandon()
            self._reports.ending()
            self._life.closed = True
            rng.session_devices = None
            if self._unwinder is not None:
                self._unwinder.end()
                self._unwinder.join()
            if self._staging.on_device and self._rank.attached and self._rank.fenced:
                self._rank.freeze_good()
                unwind.free()  # the interpreter's end waits for the device, which waits for the rank that was lost
            for hook in self._hooks:
                hook.remove()
            later.deaf()
            self._broadcasts.trained()
            self._rank.close()
            if latest.session is self:
                latest.session = None

    def __repr__(self) -> str:
        where = "closed" if self._life.closed else "before resume" if self._at < 0 else f"at step {self._at}"
        return f"<replicad.Session of rank {self._rank.number} of {self._rank.world}, {where}>"

    def _check(self) -> None:
        self._rank.handle()  # another process, or closed

    # -- what is known --------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> Rank:
        """The rank underneath: rendezvous, fence, statistics."""
        return self._rank

    @property
    def parts(self) -> Parts:
        """What the session is made of, for replicad's own modules."""
        kept = self._kept
        standing = Standing(kept.loaded, self._watch.rates)
        own = frozenset(kept.trained.renormalised)
        return Parts(self._rank, kept.objects, kept.staging, kept.table, kept.sharded, own, self._watch.seen, kept.common, standing, self._watch.rewritten)

    @property
    def at(self) -> int:
        """The step whose state is live."""
        self._kept.loaded.asked = True
        return self._at

    def trained(self) -> dict[str, torch.Tensor]:
        """The parameters that asked for a gradient when the session was made, adapters say, by name: live tensors, copied at every
        step. Save them between two steps (``safetensors.torch.save_file``, ``peft``'s ``save_pretrained``)."""
        return self._trained.parameters(True)

    def frozen(self) -> dict[str, torch.Tensor]:
        """The parameters that asked for none, base weights say, by name: live tensors, kept once."""
        return self._trained.parameters(False)

    @property
    def noticed(self) -> dict[str, str]:
        """What was seen to change outside of its time, by name, with what to do about it."""
        return self._watch.seen

    @property
    def committed(self) -> int:
        """The step that the whole job would go back to now. Not each step is committed, so a loop that waits here may never end:
        :meth:`commit` has the step that you are at committed, and waits for that."""
        return self._rank.committed

    def explain(self) -> Explanation:
        """What is kept and who else has it, what a restart would lack, and whether it will be bit-exact, each with the reason and what to
        do. It prints well: ``print(session.explain())``, before the first step."""
        self._check()
        return explain(self.parts)

    def feasible(self, timeout: float = 5.0) -> Feasible:
        """Whether the loss of this rank, of its node, or of any one node of its replica group could be recovered from memory, by what
        is on record now; ``str()`` of it says why not. It asks the node's daemon, and that the leader: for now and then.
        :class:`Again` where no leader answers, :class:`Refused` where this process may not ask, :class:`Gone` where no daemon does,
        :class:`SessionState` before :meth:`resume`."""
        self._check()
        if self._at < 0:
            raise SessionState("feasible before resume: call session.resume() first")
        return feasible(admin.status(timeout), self.order.job, self.order.rank, self._at)

    def stats(self) -> Stats:
        """Captures of this rank and what they cost."""
        return self._rank.stats()


Session.register(alone.Alone)
