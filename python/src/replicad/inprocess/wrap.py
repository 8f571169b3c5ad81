"""The loop around a re-executable block, and the thread that interrupts it."""

from __future__ import annotations

import ctypes
import functools
import inspect
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import Error, Fenced, Invalid, Outlived, Signal, Stopped, Timeout
from .abort import default_abort, iterators
from .finalize import default_finalize
from .health import Unhealthy, default_health
from .modes import modes
from .parts import Part, freeze, run_all
from .watchdog import Running, Watchdog

if TYPE_CHECKING:
    from ..session import Session

__all__ = ["Call", "Restart", "wrap"]

log = logging.getLogger("replicad.inprocess")
T = TypeVar("T")

#: So many runs in a row may fail before an epoch is open for them; then the process ends. Nobody hears of them: the epoch that their rank stopped in is closed already.
EARLY = 3
#: Seconds before a block is run again that met a peer's error so early: the peer may be away for a while.
PAUSE = 0.5
#: A thread that is on its way out of the block, in a ``finally`` say, is not interrupted again for so many seconds.
CLEAN_UP = 5.0


class Restart(Signal):
    """Raised in the training thread when the epoch is closed: the block ends and runs again."""


class Call:
    """What a block may ask of its wrapper."""

    def __init__(self) -> None:
        self.runs = 0  #: how often the block was begun
        self.own_faults = 0  #: how often it ended by an exception of its own
        self.last: BaseException | None = None  #: why it ended last
        self._early = 0  # runs in a row that failed before an epoch was open for them


class Trace:
    """A JSON line for each phase, for profiling."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        if path:
            open(path, "a").close()  # a path that is wrong is the caller's to hear

    def __call__(self, event: str, **more: Any) -> None:
        if not self._path:
            return
        try:
            with open(self._path, "a") as file:
                file.write(json.dumps({"t": time.time_ns(), "pid": os.getpid(), "event": event, **more}) + "\n")
        except OSError as err:
            log.warning("replicad: the trace ends here: %s: %s", self._path, err)  # and the rank goes on
            self._path = None


class Interrupter:
    """One run's fault thread: once the epoch is closed it raises :class:`Restart` in the training thread, before anything is
    aborted, and again until the thread has come back, or is on its way with what it has to clean up. An exception can't be delivered to a thread that is blocked in C, so
    the process groups are aborted next, and a thread that has not come back in time is ended with the process by the
    :class:`Watchdog`: the launcher starts another, and the arena stays.

    Inside of the optimizer step nothing is raised: the step ends, and its capture begins, first. Nor is anything where it would
    leave a process or a descriptor behind (:func:`_unsafe`).
    """

    def __init__(self, session: Callable[[], Any], free: Sequence[Part], soft: float, watchdog: Watchdog, trace: Trace) -> None:
        self._get, self._soft, self._watchdog, self._trace = session, soft, watchdog, trace
        self._free: list[Part] = [getattr(part, "begin", part) for part in free]
        self._target = threading.get_ident()
        self._late: Running | None = None  # the training thread's way back
        self._inside, self._over = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="replicad-faults", daemon=True)

    def __enter__(self) -> Interrupter:
        self._thread.start()
        return self

    def inside(self) -> None:
        """The first thing inside of the ``with``: an exception that came before would not be seen to have come out of it."""
        self._inside.set()

    def _run(self) -> None:
        self._inside.wait()
        while not self._over.is_set():
            if (session := self._get()) is None:
                self._over.wait(0.1)
            elif session._resumed.wait(0.1) and session.rank.wait_fence(0.1):
                self._trace("fenced")
                self._interrupt(session)

    def _interrupt(self, session: Any) -> None:
        """Until the thread has left the block, or joins the next epoch by itself."""
        began, freed = time.monotonic(), False
        self._late = self._watchdog.begin("the training thread, which is to leave the block", self._target)
        while not self._over.is_set() and session._resumed.is_set():
            waited = time.monotonic() - began
            with self._lock:
                busy = session._in_step() or _unsafe(self._target)  # it is not blocked, and comes back by itself
                if not self._over.is_set() and not busy and not (waited < CLEAN_UP and _leaving(self._target)):
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), ctypes.py_object(Restart))
            if not freed and waited >= self._soft and not busy:
                freed = True
                session.rank.freeze_good()
                run_all("abort", self._free, self._watchdog, lambda _, **more: self._trace("free", **more))
            self._over.wait(self._soft if waited < 1 else 0.5)
        self._watchdog.over(self._late)

    def __exit__(self, *_: object) -> None:
        while True:
            try:
                with self._lock:
                    self._over.set()
                    self._inside.set()
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), None)
                if self._late is not None:
                    self._watchdog.over(self._late)  # it is back, and waits for the parts that still run, which have a deadline each
                self._thread.join()
                return
            except Restart:
                continue  # it was on its way already


#: What starts and ends a data loader's worker processes, and takes the memory of a batch from them, by module and function.
_WORKERS = {
    ("torch.utils.data.dataloader", "__init__"),
    ("torch.utils.data.dataloader", "_shutdown_workers"),
    ("torch.multiprocessing.reductions", "rebuild_storage_fd"),
    ("multiprocessing.process", "start"),
    ("multiprocessing.util", "__call__"),
}


def _unsafe(thread: int) -> bool:
    """Whether a thread is in a destructor, or starts or ends worker processes or takes a batch from one: what an exception there leaves half
    done (a child that was waited for and is not known to be gone, descriptors that nobody closes) is never put right."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__" or (frame.f_globals.get("__name__"), name) in _WORKERS:
            return True
        frame = frame.f_back
    return False


def _leaving(thread: int) -> bool:
    """Whether a thread is handling a restart: in a ``finally``, an ``except`` or an ``__exit__`` on its way out."""
    handled: Any = sys._current_exceptions().get(thread)
    if isinstance(handled, tuple):  # before Python 3.12
        handled = handled[1]
    return handled is not None and any(isinstance(e, Restart) for e in _chain(handled))


def wrap(
    session: Session | Callable[[], Session | None],
    *,
    enabled: bool = True,
    abort: Sequence[Part] | None = None,
    finalize: Sequence[Part] | None = None,
    health: Sequence[Part] | None = None,
    peer_grace: float = 5.0,
    soft: float = 0.02,
    hard: float = 60.0,
    trace: str | None = None,
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A decorator for a block that is run again in every epoch, until it returns.

    ``session`` is the block's, or a function that returns it once the block has made it (where the model, and so the session,
    needs a process group first). A block that fails before there is a session just fails.
    ``abort`` is what is taken down when the block ends early, ``finalize`` what is cleaned up after that, ``health`` what must
    hold for the process to go on; each replaces the default list. An error of a collective is a peer's fault if the epoch is
    closed within ``peer_grace`` seconds; any other exception is this rank's own, and reported. The third run in a row that fails before its
    ``session.resume()`` has returned ends the process (:class:`Unhealthy`, from what it raised): a new one takes its place. ``soft`` seconds after the
    epoch was closed a training thread that is still blocked has its process groups aborted. One that is not back after
    ``hard`` seconds is ended with its process, and so is each part that takes as long. ``trace`` names a file for a JSON
    line a phase. ``enabled=False`` runs the block once, as it is.

    Whatever a part raises is logged, with its name, and the others run; of ``health`` it ends the process
    (:class:`Unhealthy`) once all have run, and so does Ctrl-C in any part.

    :class:`replicad.Invalid` for a coroutine or a generator: it has done nothing yet when it returns.
    """
    get: Callable[[], Any] = session if callable(session) else lambda: session

    def decorate(fn: Callable[..., T]) -> Callable[..., T]:
        _plain(fn)

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> T:
            call = Call()
            if not enabled:
                return fn(call, *args, **kwargs)
            down = list(default_abort() if abort is None else abort)
            clean = list(default_finalize() if finalize is None else finalize)
            sane = list(default_health() if health is None else health)
            to = Trace(trace)
            with freeze(), _Unraisable(), Watchdog(hard, lambda: get().rank.number, to) as watchdog:
                back = modes()
                while True:
                    done, value = _once(get, fn, call, args, kwargs, down, peer_grace, soft, watchdog, to)
                    if done:
                        return value  # type: ignore[return-value]
                    back()
                    _run("finalize", clean, watchdog, to)
                    if errors := _run("health", sane, watchdog, to):
                        watchdog.last()
                        raise Unhealthy("; ".join(f"{n}: {e if isinstance(e, Unhealthy) else f'{type(e).__name__}: {e}'}" for n, e in errors)) from errors[0][1]
                    to("again", runs=call.runs)

        return run

    return decorate


def _plain(fn: Callable[..., Any]) -> None:
    """Refuses a block of which nothing has run when it returns."""
    name = getattr(fn, "__qualname__", repr(fn))
    for f in (fn, fn.__call__):  # type: ignore[operator]
        if inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f):
            raise Invalid(f"wrap: {name} is an `async def`, of which nothing has run when it returns: wrap a plain function that runs it to its end, with asyncio.run() inside")
        if inspect.isgeneratorfunction(f):
            raise Invalid(f"wrap: {name} is a generator, of which nothing has run when it returns: wrap a plain function that runs it to its end, with the loop over it inside")


def _run(kind: str, parts: Sequence[Part], watchdog: Watchdog, trace: Trace) -> list[tuple[str, BaseException]]:
    """Runs parts on the training thread; the user's Ctrl-C, and the restart of a wrapper around this one, go on once all have run."""
    errors = run_all(kind, parts, watchdog, trace)
    for _, err in errors:
        if isinstance(err, KeyboardInterrupt):
            watchdog.last()
        if isinstance(err, (KeyboardInterrupt, Restart)):
            raise err
    return errors


def _once(
    get: Callable[[], Any],
    fn: Callable[..., T],
    call: Call,
    args: Any,
    kwargs: Any,
    down: Sequence[Part],
    peer_grace: float,
    soft: float,
    watchdog: Watchdog,
    trace: Trace,
) -> tuple[bool, T | None]:
    """Runs the block once; (True, its value) when it returned."""
    call.runs += 1
    trace("run", runs=call.runs)
    try:
        with Interrupter(get, down, soft, watchdog, trace) as interrupter:
            interrupter.inside()
            return True, fn(call, *args, **kwargs)
    except Stopped:
        raise
    except (Restart, Fenced) as err:
        reason: BaseException = err
    except Exception as err:
        reason = err
    if (session := get()) is None:
        raise reason
    rank = session.rank
    if isinstance(reason, (Outlived, Unhealthy)):  # the latter of a wrapper inside of this one
        watchdog.last()
        _run("abort", down, watchdog, trace)
        raise reason
    if not rank.attached:
        raise reason  # this process never was the rank: nothing is kept in it, and the daemon can't be told anything
    if session._left and not isinstance(reason, Signal):
        raise reason  # the job has ended well without what came after it
    rank.freeze_good()
    trace("ended", reason=f"{type(reason).__name__}: {reason}"[:400])
    peers = isinstance(reason, Signal) or (_of_a_collective(reason) and rank.wait_fence(peer_grace))
    resumed = session._resumed.is_set()
    if resumed:
        call._early = 0
    if not peers and not (resumed and rank.fenced):  # what ends with its epoch closed ends by that, as a rule
        call.own_faults += 1
        with watchdog.during("the report of the fault"):
            log.error("replicad: the block failed on rank %d:\n%s", rank.number, "".join(traceback.format_exception(reason)))
            _report(rank, reason)
    if not resumed and not peers and not isinstance(reason, Timeout):
        call._early += 1
        if call._early == EARLY:
            watchdog.last()
            _run("abort", down, watchdog, trace)
            raise Unhealthy(f"the block failed {EARLY} times in a row before session.resume() had returned in it, so this process ends: a new one may get further") from reason
    loaders = iterators()  # held, so that waiting for their workers is left to ``down``: the other ranks wait for the rest alone
    with watchdog.during("what the block leaves behind"):
        for seen in _chain(reason):
            if seen.__traceback__ is not None:
                traceback.clear_frames(seen.__traceback__)  # they hold loaders, groups and tensors of the old epoch; what they do at their end comes before the rest
    call.last = reason.with_traceback(None) if isinstance(reason, Signal) else reason
    with watchdog.during("the stop of the rank"):
        session.rest()
    _run("abort", down, watchdog, trace)
    del loaders
    if peers and not resumed and not isinstance(reason, Signal):
        log.warning("replicad: the block is run again, as it met an error of a peer before session.resume() had returned in it: %s: %s", type(reason).__name__, reason)
        time.sleep(PAUSE)  # nobody waits for it: the rank has stopped
    return False, None


def _report(rank: Any, reason: BaseException) -> None:
    """Tells the daemon of an own fault. One of a rank that has stopped is none of any epoch."""
    if not rank.fenced:
        try:
            rank.fail("".join(traceback.format_exception_only(reason)).strip())
        except Error as err:
            log.warning("replicad: the daemon did not hear of this fault: %s", err)


def _of_a_collective(err: BaseException) -> bool:
    """Whether an exception is a communicator's: a peer may be gone."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    kinds = tuple(k for k in (getattr(dist, n, None) for n in ("DistError", "DistBackendError", "DistNetworkError")) if k)
    for seen in _chain(err):
        if kinds and isinstance(seen, kinds):
            return True
        if isinstance(seen, RuntimeError) and any(w in str(seen) for w in ("gloo", "NCCL", "Connection closed by peer", "Connection reset", "Broken pipe", "ProcessGroup")):
            return True
    return False


def _chain(err: BaseException) -> Iterator[BaseException]:
    """An exception and those that it came from: a restart finds a thread that is handling the error of a collective as often as not."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [err]
    while left:
        if (e := left.pop()) is not None and e not in seen:
            seen.append(e)
            yield e
            left += [e.__context__, e.__cause__]


class _Unraisable:
    """A :class:`Restart` that lands in a destructor or a callback is not lost: the fault thread raises it again."""

    def __enter__(self) -> None:
        self._before = sys.unraisablehook

        def hook(info: Any) -> None:
            if not isinstance(info.exc_value, Restart):
                self._before(info)

        sys.unraisablehook = hook

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._before
