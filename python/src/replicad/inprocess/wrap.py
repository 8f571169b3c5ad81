"""The loop around a re-executable block."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from .._core.ending import chain, of_a_collective
from ..errors import Error, Fenced, Invalid, Mismatch, Signal, StaleProgram, Stopped, Timeout
from . import memory
from .abort import default_abort, iterators
from .finalize import default_finalize
from .health import Unhealthy, default_health
from .hooks import hooks
from .interrupt import Interrupter, Restart, Unraisable
from .modes import modes
from .parts import Part, freeze, given, run_all
from .watchdog import Watchdog

if TYPE_CHECKING:
    from ..session import Resumed, Session

__all__ = ["Call", "Restart", "wrap"]

log = logging.getLogger("replicad.inprocess")
T = TypeVar("T")

#: So many runs in a row may fail before an epoch is open for them; then the process ends. Nobody hears of them: the epoch that their rank stopped in is closed already.
EARLY = 3
#: Seconds before a block is run again that met a peer's error so early: the peer may be away for a while.
PAUSE = 0.5


class Call:
    """What a block may ask of its wrapper, and its parts too."""

    def __init__(self, session: Callable[[], Session | None] = lambda: None) -> None:
        self._session = session
        self.runs = 0  #: how often the block was begun
        self.own_faults = 0  #: how often it ended by an exception of its own
        self.last: BaseException | None = None  #: why it ended last

    @property
    def resumed(self) -> Resumed | None:
        """What ``session.resume()`` has returned in this run; None before that, and once the run has ended early."""
        return None if (session := self._session()) is None else session.life.resume

    @property
    def step(self) -> int:
        """The step whose state is live; -1 before the first ``session.resume()``."""
        return -1 if (session := self._session()) is None else session.at

    @property
    def steps(self) -> int:
        """How many steps this run has done."""
        return 0 if (resumed := self.resumed) is None else self.step - resumed


class Trace:
    """A JSON line for each phase, for profiling."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        if path:
            open(path, "a").close()  # a path that is wrong is the caller's to hear

    @property
    def on(self) -> bool:
        """Whether anything is written."""
        return bool(self._path)

    def __call__(self, event: str, **more: Any) -> None:
        if not self._path:
            return
        try:
            with open(self._path, "a") as file:
                file.write(json.dumps({"t": time.time_ns(), "pid": os.getpid(), "event": event, **more}) + "\n")
        except OSError as err:
            log.warning("replicad: the trace ends here: %s: %s", self._path, err)  # and the rank goes on
            self._path = None


def wrap(
    session: Session | Callable[[], Session | None],
    *,
    enabled: bool = True,
    abort: Sequence[Part | Callable[[Call], object]] | None = None,
    finalize: Sequence[Part | Callable[[Call], object]] | None = None,
    health: Sequence[Part | Callable[[Call], object]] | None = None,
    peer_grace: float = 5.0,
    soft: float = 0.02,
    hard: float = 60.0,
    trace: str | None = None,
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A decorator for a block that is run again in every epoch, until it returns.

    ``session`` is the block's, or a function that returns it once the block has made it (where the model, and so the session,
    needs a process group first). A block that fails before there is a session just fails.
    ``abort`` is what is taken down when the block ends early, ``finalize`` what is cleaned up after that, ``health`` what must
    hold for the process to go on; each replaces the default list. A part that takes an argument gets the block's :class:`Call`.
    An error of a collective is a peer's fault if the epoch is closed within ``peer_grace`` seconds; any other exception is this
    rank's own, and reported. The third run in a row that fails before its ``session.resume()`` has returned ends the process
    (:class:`Unhealthy`, from what it raised): a new one takes its place. ``soft`` seconds after the epoch was closed a training
    thread that is still blocked has its process groups aborted. One that is not back after ``hard`` seconds is ended with its
    process, and so is each part that takes as long. ``trace`` names a file for a JSON line a phase. ``enabled=False``, or a
    session that is off, runs the block once, as it is.

    Whatever a part raises is logged, with its name, and the others run; of ``health`` it ends the process
    (:class:`Unhealthy`) once all have run, and so does Ctrl-C in any part.

    :class:`replicad.Invalid` for a coroutine or a generator: it has done nothing yet when it returns.
    """

    def get() -> Any:
        """The session, once there is one that keeps anything."""
        now = session() if callable(session) else session
        return now if now is not None and now.enabled else None

    def decorate(fn: Callable[..., T]) -> Callable[..., T]:
        _plain(fn)

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> T:
            call = Call(lambda: session() if callable(session) else session)
            if not enabled or (not callable(session) and not session.enabled):
                return fn(call, *args, **kwargs)
            down = given(call, default_abort() if abort is None else abort)
            clean = given(call, default_finalize() if finalize is None else finalize)
            sane = given(call, default_health() if health is None else health)
            to = Trace(trace)
            with freeze(), Unraisable(), Watchdog(hard, lambda: get().rank.number, to) as watchdog:
                return Runs(get, functools.partial(fn, call, *args, **kwargs), call, down, clean, sane, peer_grace, soft, watchdog, to).until_one_returns()

        return run

    return decorate


def _plain(fn: Callable[..., Any]) -> None:
    """Refuses a block of which nothing has run when it returns."""
    name = getattr(fn, "__qualname__", repr(fn))
    for f in (fn, fn.__call__):  # type: ignore[operator]
        if inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f):
            raise Invalid(f"wrap: {name} is an `async def`, and calling it runs nothing: wrap a plain function that runs it to its end with asyncio.run()")
        if inspect.isgeneratorfunction(f):
            raise Invalid(f"wrap: {name} is a generator, and calling it runs nothing: wrap a plain function that runs it to its end, in a loop over it")


@dataclass
class Runs(Generic[T]):
    """The runs of one block, one after the other."""

    session: Callable[[], Any]
    block: Callable[[], T]
    call: Call
    abort: Sequence[Part]
    finalize: Sequence[Part]
    health: Sequence[Part]
    peer_grace: float
    soft: float
    watchdog: Watchdog
    trace: Trace
    early: int = 0  #: runs in a row that failed before an epoch was open for them

    def until_one_returns(self) -> T:
        """Returns what the first run returns that is not ended early."""
        undo = [modes(), hooks()]
        while True:
            self.call.runs += 1
            self.trace("run", runs=self.call.runs)
            interrupter = Interrupter(self.session, self.abort, self.soft, self.watchdog, self.trace)
            try:
                with interrupter:
                    interrupter.inside()
                    return self.block()
            except Stopped:
                raise
            except (Restart, Fenced, Exception) as err:
                reason = err
                interrupter.end()
            self._ended(reason)
            del reason
            for back in undo:
                back()
            self._run("finalize", self.finalize)
            if errors := self._run("health", self.health):
                self.watchdog.last()
                raise Unhealthy("; ".join(f"{n}: {e if isinstance(e, Unhealthy) else f'{type(e).__name__}: {e}'}" for n, e in errors)) from errors[0][1]
            self._memory("after")
            self.trace("again", runs=self.call.runs)

    def _memory(self, when: str) -> None:
        """Writes into the trace what memory there is: what a restart leaves behind shows over many of them."""
        if self.trace.on:
            with self.watchdog.during("the trace's look at memory"):
                self.trace("memory", when=when, **memory.now())

    def _ended(self, reason: BaseException) -> None:
        """After a run that ended early: raises where no other follows, else leaves nothing of it that the next would meet."""
        if (session := self.session()) is None:
            raise reason
        rank = session.rank
        if isinstance(reason, (StaleProgram, Unhealthy, Mismatch)):  # the second of a wrapper inside of this one
            self._end_process(reason)
        if not rank.attached:
            raise reason  # this process never was the rank: nothing is kept in it, and the daemon can't be told anything
        if session.life.left and not isinstance(reason, Signal):
            raise reason  # the job has ended well without what came after it
        session.step_end(reason)  # one that hooks hold open
        session.last_moment()
        rank.freeze_good()
        self.trace("ended", reason=f"{type(reason).__name__}: {reason}"[:400])
        self._memory("before")
        signal = isinstance(reason, Signal)
        of_a_peer = signal or (of_a_collective(reason) and rank.wait_fence(self.peer_grace))
        resumed = session.life.resumed.is_set()
        if not of_a_peer and not (resumed and rank.fenced):  # what ends with its epoch closed ends by that, as a rule
            self._own_fault(rank, reason)
        if resumed:
            self.early = 0
        elif not of_a_peer and not isinstance(reason, Timeout):
            self._too_early(reason)
        self._take_down(session, reason)
        if of_a_peer and not resumed and not signal:
            log.warning("replicad: the block is run again, as it met an error of a peer before session.resume() had returned in it: %s: %s", type(reason).__name__, reason)
            time.sleep(PAUSE)  # nobody waits for it: the rank has stopped

    def _own_fault(self, rank: Any, reason: BaseException) -> None:
        """Counts and logs an own fault, and tells the daemon. One of a rank that has stopped is none of any epoch."""
        self.call.own_faults += 1
        with self.watchdog.during("the report of the fault"):
            log.error("replicad: the block failed on rank %d:\n%s", rank.number, "".join(traceback.format_exception(reason)))
            if rank.fenced:
                return
            try:
                rank.fail("".join(traceback.format_exception_only(reason)).strip())
            except Error as err:
                log.warning("replicad: the daemon did not hear of this fault: %s", err)

    def _too_early(self, reason: BaseException) -> None:
        """A run failed before an epoch was open for it: the last of so many in a row ends the process."""
        self.early += 1
        if self.early == EARLY:
            end = Unhealthy(f"the block failed {EARLY} times in a row before session.resume() had returned in it, so this process ends: a new one takes its place")
            end.__cause__ = reason
            self._end_process(end)

    def _take_down(self, session: Any, reason: BaseException) -> None:
        """What hangs on the old epoch ends: the block's frames, the rank's part in it, and what the parts of ``abort`` find."""
        loaders = iterators()  # held, so that waiting for their workers is left to ``abort``: the other ranks wait for the rest alone
        with self.watchdog.during("what the block leaves behind"):
            for seen in chain(reason):
                if seen.__traceback__ is not None:
                    traceback.clear_frames(seen.__traceback__)  # they hold loaders, groups and tensors of the old epoch; what they do at their end comes before the rest
        self.call.last = reason.with_traceback(None) if isinstance(reason, Signal) else reason
        with self.watchdog.during("the stop of the rank"):
            session.rest()
        self._run("abort", self.abort)
        del loaders

    def _end_process(self, reason: BaseException) -> NoReturn:
        """Raises what the process ends with, once what its peers wait for is taken down; the watchdog sees to the end."""
        self.watchdog.last()
        self._run("abort", self.abort)
        raise reason

    def _run(self, kind: str, parts: Sequence[Part]) -> list[tuple[str, BaseException]]:
        """Runs parts on the training thread; the user's Ctrl-C, and the restart of a wrapper around this one, go on once all have run."""
        errors = run_all(kind, parts, self.watchdog, self.trace)
        for _, err in errors:
            if isinstance(err, KeyboardInterrupt):
                self.watchdog.last()
            if isinstance(err, (KeyboardInterrupt, Restart)):
                raise err
        return errors
