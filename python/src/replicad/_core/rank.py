"""One rank's session with the daemon of its node: the C client with threads around it, and no knowledge of torch.

Most programs use :class:`replicad.Session`, which is built on this. Use :class:`Rank` to put replicad under something that
is not PyTorch: register any memory that supports the buffer protocol, and follow the life of a rank::

    rank = Rank.open()
    rank.register([Region("weights", memory, dtype="float32")])
    rank.attach()
    while True:
        order = rank.join()
        if order.initialise:
            fill(memory); rank.seal_initial(); continue
        rank.load(); rank.ready()
        try:
            for step in itertools.count(order.step + 1): ...
        except Fenced:
            continue
"""

from __future__ import annotations

import contextlib
import ctypes as c
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..errors import Error, Fenced, Gone, Invalid, Timeout
from . import joining, preloading
from . import native as n
from .handle import RETRY, SLICE
from .region import Region
from .rendezvous import Gathering
from .threads import ANSWER, Threads, helpers
from .waiting import astray, wait_rank

__all__ = ["Order", "Rank", "Stats"]

#: How long a rank that waits for a commit looks away, in seconds.
GLANCE = 0.001
#: How long a rank waits for its arena, in seconds: so long, and a second for so many registered bytes. A node that is short of huge pages, and of
#: processors, takes a second to reserve a gigabyte, and an arena has up to four slots.
ATTACH, RESERVED = 120.0, 128 << 20
#: The pause of a rank that stands still to have its step committed, in seconds: next to none.
STAND = 0.001


@dataclass(frozen=True)
class Order:
    """Where a rank starts in an epoch."""

    initialise: bool  #: initialise the state and seal it, then join again; else load it
    epoch: int
    step: int  #: the state after this step is (to be) in place; training goes on with the next
    incarnation: int
    source: str  #: "own-ram", "peer-ram", "durable", or "fresh"
    rank: int
    world: int
    group: int
    job: uuid.UUID


@dataclass(frozen=True)
class Stats:
    """What a rank has done: replicated parts captured, skipped and cancelled, and the cost of those captured."""

    captures: int
    skipped: int
    canceled: int
    private_skipped: int
    capture_bytes: int
    capture_seconds: float
    reconnects: int


class Rank(Threads):
    """A handle of the C client.

    Calls of the training thread are serialised by a lock, so a rendezvous may be asked from another thread. Two threads belong to
    an attached rank: the worker copies armed captures (outside the GIL), the watcher takes in what the daemon sends, sees the
    fence, and finds a daemon that went away. With REPLICAD_CAPTURE_THREADS=N, N - 1 helpers copy beside the worker.
    """

    def __init__(self, handle: c.c_void_p, pid: int, number: int, world: int, group: int | None) -> None:
        super().__init__(handle, pid, number)
        self.world, self.group = world, group  #: the ranks, and its replica group (None: not named yet)
        self.groups: tuple[int, ...] | None = None  #: the replica group of every rank, where the launcher said it
        self.auto = False  #: whether the ranks name their groups
        self._keep: list[Any] = []
        self._registered = 0  # bytes
        self._lacking = 0  # steps whose private part was not copied
        self._frozen = False
        self._paused = 0.0  # until then it may stand still
        self._kept: list[object] = []
        self.met: Gathering | None = None  #: the one that this process is of, until its epoch is open
        self.ordered = 0  #: the epoch of the last order

    # -- life ---------------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        *,
        socket: str | None = None,
        job: str | None = None,
        token: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        group: int | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> Rank:
        """Connects to the daemon, waiting up to ``timeout`` seconds for it to appear.

        What is None comes from the environment that ``replicad run`` sets: REPLICAD_SOCKET, REPLICAD_JOB, REPLICAD_TOKEN,
        REPLICAD_RANK, REPLICAD_WORLD and REPLICAD_GROUP. Under another launcher (``replicad exec``) the rank and the world are
        torchrun's RANK and WORLD_SIZE, and the group is the rank's in REPLICAD_GROUPS: 0 where that is not set. In a job with
        ``--groups auto`` the group is None until :meth:`name_group`.

        Where no launcher started this process (an actor of Ray, say), ``job`` and ``rank`` say which rank it becomes. The job is created unless it runs already, with
        ``options``, which are flags of ``replicad exec``: ``dev=True``, ``config="a.yaml"``, ``min_copies=1``, ``durable_every=20``. One that was stopped is not begun again unless
        ``resume`` is given. ``world`` is the number of bundles in the actor's placement group unless it is given. REPLICAD_RANK and the others are set in ``os.environ``.

        :class:`Invalid` names what is missing or out of range, :class:`Gone` and :class:`Timeout` say
        what to start, :class:`Refused` why the daemon will not have this rank.
        """
        wait_rank()
        joins = bool(options) or (job is not None and not (socket or os.environ.get("REPLICAD_SOCKET")))
        o = n.Options(struct_size=c.sizeof(n.Options))
        place = ("REPLICAD_RANK", "REPLICAD_WORLD")
        if place[0] not in os.environ and os.environ.get("RANK"):
            place = ("RANK", "WORLD_SIZE")
        o.rank = _number("rank", place[0], rank)
        if joins and world is None and place[1] not in os.environ:
            world = joining.bundles()
        o.world = _number("world", place[1], world)
        if joins:
            joining.create(job, o.rank, o.world, token, socket, options, timeout)
        o.socket_path, o.job, o.token = (_bytes(v) for v in (socket, job, token))
        auto = os.environ.get("REPLICAD_GROUPS") == "auto" and group is None and "REPLICAD_GROUP" not in os.environ
        given = None if auto else _groups(o.world)
        if group is None and "REPLICAD_GROUP" not in os.environ and (joins or place[0] == "RANK"):
            group = given[o.rank] if given else 0
        o.group = n.NO_GROUP if auto else _number("group", "REPLICAD_GROUP", group)
        if given and given[o.rank] != o.group:
            given = None  # the caller names another group: what the environment says is of another job
        if not (socket or os.environ.get("REPLICAD_SOCKET")):
            raise Invalid(
                "no daemon is named: start this program with `replicad run`, set REPLICAD_SOCKET to the daemon's socket for ranks, or say which job: connect(job=..., rank=...)"
            )
        if joins:
            joining.take(o.rank, o.world, None if auto else o.group)
        lib, handle, text = n.library(), c.c_void_p(), n.ErrorText()
        end, wait = time.monotonic() + timeout, SLICE
        while True:
            o.timeout_ns = int(wait * 1e9)
            code = lib.rp_open(c.byref(o), c.byref(handle), c.byref(text))
            if code == n.OK:
                made = cls(handle, os.getpid(), o.rank, o.world, None if auto else o.group)
                made.groups, made.auto = given, auto
                made.launched = "REPLICAD_AGENT" in os.environ or (place[0] == "REPLICAD_RANK" and not joining.taken)
                return made
            if code not in (n.EGONE, n.ETIMEOUT, n.EAGAIN) or time.monotonic() >= end:
                raise n.failure("open", code, text)
            if code == n.ETIMEOUT:  # a busy daemon: the next call connects anew, and would not have its answer either
                wait = min(2 * wait, ANSWER)
            time.sleep(RETRY)

    def name_group(self, group: int) -> None:
        """Says which replica group the rank is in, before :meth:`attach`: in a job with ``--groups auto``, once the model says it."""
        self._check(self._lib.rp_set_group(self.handle(), group, c.byref(self._text)), "name the group")
        self.group = group

    def register(self, regions: Iterable[Region]) -> None:
        """Names the live state, before :meth:`attach`, in an order equal on all ranks of a group."""
        table, keep, nbytes = _table(regions)
        self._check(self._lib.rp_register(self.handle(), table, len(table), c.byref(self._text)), "register")
        self._registered, self._keep = nbytes, keep

    def grow(self, regions: Iterable[Region], recipe: bytes = b"", timeout: float | None = None) -> None:
        """Between two steps, on all ranks of the job after the same step, committed or not: from now on the rank has these
        regions, in place of those that it registered. A region that stays is named again. The memory of replicated regions must hold equal
        bytes on the ranks of a group by now. ``recipe``: up to 64 KiB, equal on all ranks, that the job keeps for :meth:`recipe`.

        Then :meth:`join` says ``initialise`` at the same step of the next epoch, and goes on as at the beginning: :meth:`seal_initial`,
        :meth:`join`, :meth:`load`, :meth:`ready`. The epoch of before is closed: what :meth:`on_fence` was given is called.

        :class:`Refused`: nothing has changed, and the epoch is open: no memory, or another rank asks for other regions or does not ask.
        :class:`Fenced`: a fault was first; :meth:`join` goes on with the regions of before. :class:`Timeout`: call it again with the same
        regions. A fault before :meth:`ready` takes the growth back: :class:`Stopped`, and a new process goes on with the regions of before."""
        table, keep, nbytes = _table(regions)
        self._wait("grow", lambda ns: self._lib.rp_grow(self._h, table, len(table), recipe, len(recipe), ns, c.byref(self._text)), timeout)
        self._registered, self._keep = nbytes, keep

    def recipe(self, timeout: float | None = None) -> bytes:
        """What :meth:`grow` was given last, in this job; empty where it has never grown. A process reads it after :meth:`open` and before
        :meth:`register`, and registers what the job has now."""
        room, size = c.create_string_buffer(n.MAX_RECIPE), c.c_size_t()

        def call(ns: int) -> int:
            size.value = n.MAX_RECIPE
            return int(self._lib.rp_recipe(self._h, room, c.byref(size), ns, c.byref(self._text)))

        self._wait("read the recipe", call, timeout)
        return room.raw[: size.value]

    def origin(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Which generation of another run the job began with: "url" of the store's root, "job", "run", "place" below the root, "generation" and its
        "world"; None: none. After :meth:`open`. Who is told to initialise its state then loads it from there: of what a group has in common only the
        rank that "seals" names, which is said once the rank is attached; the others call :meth:`seal_own`."""
        room = c.create_string_buffer(8192)
        self._wait("read what the job began with", lambda ns: self._lib.rp_from(self._h, room, len(room), ns, c.byref(self._text)), timeout)
        return cast("dict[str, Any]", json.loads(room.value)) if room.value else None

    def attach(self, timeout: float | None = None) -> None:
        """Claims the rank and maps its arena; None: as long as an arena of the registered size may take."""
        more = helpers()
        if timeout is None:
            timeout = ATTACH + self._registered / RESERVED
        self._wait("attach", lambda ns: self._lib.rp_attach(self._h, ns, c.byref(self._text)), timeout)
        self._start(more)

    def join(self, timeout: float | None = None, beside: bool = False) -> Order:
        """Stops the rank and waits for the next order: first of all, after every :class:`Fenced`, and after
        :meth:`seal_initial`. Captures under way end; a healthy live state that is needed is captured here. ``beside``: another
        thread uses the rank meanwhile; this one takes it only to look, when the daemon has sent something and ten times a second."""
        info = n.JoinInfo(struct_size=c.sizeof(n.JoinInfo))
        leave = self._until_ordered if beside else None
        self._wait("join", lambda ns: self._lib.rp_join(self._h, c.byref(info), 0 if beside else ns, c.byref(self._text)), timeout, leave)
        with self.stage_lock:  # a worker that comes late stages nothing over what is loaded now
            self._armed.value = self._later = 0
        self._frozen = False
        self._capture_error = None
        with self._fence_lock:
            self._fence.clear()
            self._on_fence.clear()
        self._look_at_fence()
        self.ordered = info.epoch
        return Order(
            info.action == n.INIT, info.epoch, info.step, info.incarnation, n.SOURCES[info.source], info.rank, info.world, info.group,
            uuid.UUID(info.job_uuid.decode()),
        )  # fmt: skip

    def begin_at(self, step: int) -> None:
        """Before :meth:`seal_initial`: the state that is in place is the program's own, of this step, and the job counts from there."""
        with self._lock:
            self._check(self._lib.rp_begin_at(self.handle(), step, c.byref(self._text)), "begin")

    def seal_initial(self) -> None:
        """Captures and seals the initial state."""
        self._wait("seal the initial state", lambda ns: self._lib.rp_seal_initial(self._h, c.byref(self._text)), None)

    def seal_own(self) -> None:
        """In its place: seals the rank's own part alone. Another rank of its group seals what they have in common, and :meth:`load` brings it."""
        self._wait("seal what is the rank's own", lambda ns: self._lib.rp_seal_own(self._h, c.byref(self._text)), None)

    def load(self) -> None:
        """Copies the ordered generation into the registered memory; every chunk is verified first."""
        with self._lock:
            self._check(self._lib.rp_load(self.handle(), c.byref(self._text)), "load")

    def reject(self, why: str) -> None:
        """Says, between :meth:`load` and :meth:`ready`, that the loaded values are bad though every digest is right."""
        with self._lock:
            self._check(self._lib.rp_reject(self.handle(), why.encode()[:4000], c.byref(self._text)), "reject")

    def ready(self, timeout: float | None = None) -> None:
        """Acknowledges the load; returns when the epoch is opened."""
        self._wait("ready", lambda ns: self._lib.rp_ready(self._h, ns, c.byref(self._text)), timeout)

    def resumed(self, timeout: float | None = None) -> str:
        """After :meth:`ready` of an order whose source is "durable": which generation the job goes on from, how old it is, and which ones were passed over
        with what is wrong with them. It is the line that launchers print; empty: nothing is known."""
        room = c.create_string_buffer(1024)
        self._wait("read what it resumed from", lambda ns: self._lib.rp_resumed(self._h, room, len(room), ns, c.byref(self._text)), timeout)
        return room.value.decode(errors="replace")

    def fail(self, text: str) -> None:
        """Reports a fault of this rank: its epoch is closed."""
        with self._lock:
            self._check(self._lib.rp_fail(self.handle(), text.encode(errors="replace")[:4000], c.byref(self._text)), "fail")

    def pause(self, most: float) -> None:
        """Says that this rank will stand still for at most ``most`` seconds, on purpose, so that it is not taken for a hang; 0
        ends the pause. A daemon that is away hears it once it is back."""
        with self._lock, contextlib.suppress(Gone):
            self._paused = time.monotonic() + most
            self._check(self._lib.rp_pause(self.handle(), int(most * 1e9), c.byref(self._text)), "pause")

    def ending(self, most: float) -> None:
        """Says that this process is on its way out, for at most ``most`` seconds, so that it is not taken for a hang."""
        with self._lock:
            self._check(self._lib.rp_ending(self.handle(), int(most * 1e9), c.byref(self._text)), "ending")

    def lacks(self, text: str) -> None:
        """Names what the copies of this rank do not hold although the program changes it, from :meth:`attach` on; "" takes it back.

        ``text`` is a list of names, separated by ", "; beyond 1,000 bytes it is cut. ``replicad status``, the launcher at the first commit and durable
        generations written from now on say it. A new process of the rank begins without it."""
        with self._lock:
            self._check(self._lib.rp_lacks(self.handle(), text.replace("\0", " ").encode(errors="replace"), c.byref(self._text)), "lacks")

    def say(self, remarks: Sequence[n.Remark]) -> None:
        """All that this rank says of its job from now on, from :meth:`attach` on (``rp_say``)."""
        with self._lock:
            self._check(self._lib.rp_say(self.handle(), (n.Remark * len(remarks))(*remarks), len(remarks), c.byref(self._text)), "say")

    def leave(self, timeout: float | None = None) -> None:
        """Says that the job is finished for this rank; returns when it is for all."""
        self._wait("leave", lambda ns: self._lib.rp_leave(self._h, ns, c.byref(self._text)), timeout)

    def close(self) -> None:
        """Ends the threads and the handle. It doesn't say that the rank has finished: that is :meth:`leave`."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._quit.set()
        self._wake.set()
        self._news.set()
        if self._stop is not None:
            self._lib.rp_cancel(self._h)
            os.eventfd_write(self._stop, 1)
            for t in self.threads:
                t.join()
        with self._lock:
            if self._stop is not None:
                os.close(self._stop)
            self._lib.rp_close(self._h)
            self._h = c.c_void_p()
        self._keep.clear()
        self._kept.clear()

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- steps --------------------------------------------------------------------------------------------------------

    def step_enter(self, step: int, timeout: float = 30.0) -> bool:
        """Opens the optimizer window of ``step``; waits up to ``timeout`` seconds for the capture of the step before to
        leave the live state, and cancels it then. :class:`Fenced`: the step was not begun. It returns whether the private regions
        were copied: not so while the daemon is behind and has freed no place for them."""
        with self._lock:
            if err := self._capture_error:  # the capture of the step before will never end
                self._capture_error = None
                raise err
            code = self._lib.rp_step_enter(self.handle(), step, int(timeout * 1e9), c.byref(self._text))
            copied = self._private_copied()
            self._wake.set()  # the last of it: in a C call after this the worker would take the interpreter
            self._copied(code, f"enter step {step}")
            return copied

    def _private_copied(self) -> bool:
        """Whether the call before found a place for the private regions, where it copies them."""
        lacking, self._lacking = self._lacking, self._stats().private_skipped
        return lacking == self._lacking

    def step_exit(self, step: int, *, updated: bool = True, good: bool = True, staged: bool = True, private_later: bool = False) -> bool:
        """Closes the window and starts the capture behind the next forward. ``good``: the update is complete and no
        communicator has failed; where that is known only later (CUDA), :meth:`set_good` follows. ``staged``: the registered memory holds
        the step; where it is brought there later, :meth:`staged` follows. ``private_later``: its private regions too, which :meth:`private_staged`
        copies. It returns as :meth:`step_enter` does, where private regions are copied now."""
        flags = (0 if updated else n.NO_UPDATE) | (0 if staged else n.STAGED_LATER) | (n.PRIVATE_LATER if private_later else 0)
        with self._lock:
            h = self.handle()
            if good and not self._frozen:
                self._check(self._lib.rp_set_good(h, self.ordered, step), f"exit step {step}")
            code = self._lib.rp_step_exit(h, step, flags, c.byref(self._armed), c.byref(self._text))
            if self._armed.value:
                self._arming = step
            self._later = step if private_later else 0
            copied = self._private_copied()
            self._wake.set()
            self._copied(code, f"exit step {step}")
        if not preloading.told:
            preloading.report()
        return copied

    def expect(self, region: int, offset: int, address: int, nbytes: int) -> None:
        """Says which bytes the next copy of a region must have, by where the state lies (``rp_expect``); :attr:`judge` is asked where it has others."""
        self._check(self._lib.rp_expect(self.handle(), region, offset, address, nbytes, c.byref(self._text)), "expect")

    def as_loaded(self, region: int) -> bool:
        """Whether a region has the bytes that :meth:`load` brought, until the next step begins (``rp_as_loaded``). It reads all of them."""
        same = c.c_int()
        self._check(self._lib.rp_as_loaded(self.handle(), region, c.byref(same), c.byref(self._text)), "as loaded")
        return same.value == 1

    def load_again(self, region: int) -> None:
        """Has a region have these bytes again (``rp_load_again``)."""
        self._check(self._lib.rp_load_again(self.handle(), region, c.byref(self._text)), "load again")

    @property
    def compared(self) -> int:
        """How many copies were compared with that."""
        return int(self._lib.rp_compared(self.handle()))

    def _copied(self, code: int, op: str) -> None:
        """After a call that copies."""
        if code == n.ECORRUPT and (err := self.judge(str(n.failure(op, code, self._text)))):
            raise err
        self._check(code, op)

    def staged(self, step: int) -> None:
        """Says that the registered memory holds ``step``."""
        self._check(self._lib.rp_staged(self.handle(), self.ordered, step), f"step {step} is staged")
        self._wake.set()

    def private_staged(self, step: int) -> None:
        """Says that the private regions hold ``step``, which is good, and copies them, where :meth:`step_exit` left that for later. Without effect where there is no room, or
        nobody waits for it any more."""
        code = self._lib.rp_private_staged(self.handle(), self.ordered, step, c.byref(text := n.ErrorText()))
        if code == n.ECORRUPT and (err := self.judge(str(n.failure(f"step {step}", code, text)))):
            raise err
        if code not in (n.OK, n.EAGAIN, n.ECORRUPT):
            raise n.failure(f"copy the private part of step {step}", code, text)

    @property
    def frozen(self) -> bool:
        """Whether nothing of this epoch counts as good any more."""
        return self._frozen

    @property
    def closing(self) -> bool:
        """Whether the rank is being closed."""
        return self._quit.is_set()

    def set_good(self, step: int) -> None:
        """Says that the update of ``step`` is complete and every communicator was found free of error afterwards."""
        if not self._frozen:
            self._check(self._lib.rp_set_good(self.handle(), self.ordered, step), f"step {step} is good")
            self._wake.set()

    def freeze_good(self) -> None:
        """Stops the good word until the next load: at the first communicator error, before anything is aborted."""
        self._frozen = True
        self._lib.rp_freeze_good(self.handle(), self.ordered)

    def armed(self, step: int) -> bool:
        """Whether the worker has, or had, a capture of this step to run."""
        return bool(self._armed.value) and self._arming == step

    def commit(self, step: int, timeout: float | None = None, *, unchanged: bool = False) -> None:
        """Between two steps: waits until ``step``, which is the live one, is committed on the whole job, whether the cadence asks for it
        or not. All ranks must call it. :class:`Fenced` when the epoch is closed before that, :class:`Timeout` after
        ``timeout`` seconds (None: never). ``unchanged``: the private regions
        are still as they were when the step took its copy of them; without that a copy that found no room is :class:`Canceled`."""
        end = None if timeout is None else time.monotonic() + timeout
        paused, say = self._paused, 0.0
        try:
            while self.committed < step:
                self._seal_step(f"commit step {step}", unchanged)
                now = time.monotonic()
                if end is not None and now >= end:
                    raise Timeout(f"commit step {step}: committed is {self.committed}; `replicad status` shows what the commit waits for")
                if now >= say:  # a daemon that was started again has not heard it
                    say = now + 1.0
                    with contextlib.suppress(Gone, Timeout):
                        # It says that the rank stands. It allows no time besides: who waits for a rank that hangs must not keep it from being
                        # taken for one.
                        self.pause(max(paused - now, STAND))
                self._fence.wait(GLANCE)
        except Fenced:
            if self.committed < step:  # else it was committed before the epoch was closed: another rank that heard of it may have ended
                raise
        finally:
            with contextlib.suppress(Error):
                self.pause(max(0.0, paused - time.monotonic()))

    def seal(self, step: int, timeout: float, *, unchanged: bool = False) -> None:
        """Between two steps: returns once ``step``, the live one, lies sealed in the arena and nothing is being copied."""
        end = time.monotonic() + timeout
        while not self._seal_step(f"seal step {step}", unchanged):
            if time.monotonic() >= end:
                raise n.failure(f"seal step {step}", n.ETIMEOUT, self._text)
            self._fence.wait(GLANCE)

    def _seal_step(self, op: str, unchanged: bool) -> bool:
        """Whether the live step is sealed; else it is tried now."""
        with self._lock:
            if err := self._capture_error:
                self._capture_error = None
                raise err
            self._text.text = b""
            code = self._lib.rp_seal_step(self.handle(), n.PRIVATE_UNCHANGED if unchanged else 0, c.byref(self._text))
            if code == n.ECORRUPT and not (err := self.judge(str(n.failure(op, code, self._text)))):
                return False
            if code == n.ECORRUPT and err:
                raise err
            if code not in (n.OK, n.EAGAIN):
                raise n.failure(op, code, self._text)
            return bool(code == n.OK)

    @property
    def attached(self) -> bool:
        """Whether the rank was claimed and has its arena."""
        return self._stop is not None

    @property
    def committed(self) -> int:
        """The step last committed. Any thread may ask."""
        return int(self._lib.rp_committed(self.handle()))

    def on_fence(self, call: Callable[[], None]) -> None:
        """Has ``call`` called once when the epoch that :meth:`join` named last is closed; at once if it is. On the
        watcher's thread: it must be short and must not raise."""
        with self._fence_lock:
            if not self._fence.is_set():
                self._on_fence.append(call)
                return
        call()

    def wait_fence(self, timeout: float | None = None) -> bool:
        """Waits until the epoch is closed; False after ``timeout`` seconds."""
        return self._fence.wait(timeout)

    def stats(self) -> Stats:
        """What the rank has done so far."""
        s = self._stats()
        return Stats(s.captures, s.skipped, s.canceled, s.private_skipped, s.capture_bytes, s.capture_ns / 1e9, s.reconnects)

    def _stats(self) -> n.Stats:
        s = n.Stats(struct_size=c.sizeof(n.Stats))
        self._lib.rp_get_stats(self.handle(), c.byref(s))
        return s

    def keep(self, thing: object) -> None:
        """Holds an object until the next :meth:`drop`, or the end of the rank."""
        self._kept.append(thing)

    def drop(self) -> None:
        """Lets go of what :meth:`keep` holds."""
        self._kept.clear()


def _table(regions: Iterable[Region]) -> tuple[Any, list[Any], int]:
    """The library's table of regions, what must stay while the library has it, and the bytes."""
    regions = list(regions)
    table = (n.Region * len(regions))()
    names = [r.fill(table[i]) for i, r in enumerate(regions)]
    return table, [names, [r.keep for r in regions]], sum(r.nbytes for r in regions)


def _bytes(v: str | None) -> bytes | None:
    return None if v is None else v.encode()


def _number(what: str, variable: str, given: int | None) -> int:
    if given is not None:
        return given
    text = os.environ.get(variable, "")
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        has = f"{variable}={text!r} is not a number" if text else f"{variable} is not set"
        raise Invalid(f"{what}: {has}: {astray() or f'start this program with `replicad run`, which sets it, or pass {what}='}")
    return number


def _groups(world: int) -> tuple[int, ...] | None:
    """The groups of all ranks that a launcher names; None where it names none."""
    text = os.environ.get("REPLICAD_GROUPS", "")
    if not text or text == "auto":
        return None
    try:
        groups = tuple(int(g) for g in text.split(","))
    except ValueError:
        groups = ()
    if len(groups) != world or min(groups) < 0:
        raise Invalid(f"REPLICAD_GROUPS={text!r} in a world of {world}: want one group for each rank, as `replicad run --groups 0,1,0,1` sets it, or auto")
    return groups
