"""For tests of your own training: break it at places that you name, and ask whether a resumed run is the same run.

:class:`Faults` kills, raises or hangs in a rank, by a seeded plan. :func:`check_resume` trains twice, once in one go and once
through the loss of a process, and names the first thing that differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .session import Session

__all__ = ["KINDS", "PLACES", "Different", "Fault", "Faults", "Injected", "Resumption", "check_resume"]

#: Where a rank can be broken, in the order in which a step comes by: in the middle of the model's forward, in the middle of its
#: backward, in the forward of a later micro-batch (gradients are half accumulated), in the optimizer step before and after the
#: update, while the worker copies the step's state; and in a recovery, between the load and the word that it is done.
PLACES = ("forward", "backward", "accumulate", "window", "updated", "capture", "resume")
#: SIGKILL to the process; a :class:`RuntimeError`; or the thread stands still for ever. A rank that hangs keeps its heartbeat: what ends
#: it is a peer whose collective times out (``init_process_group(timeout=)``). That peer's fault closes the epoch, and who does
#: not come to join the next one is ended, by the in-process wrapper after ``hard`` seconds or by the daemon after its ``settle`` and
#: ``ack`` times.
KINDS = ("kill", "raise", "hang")


class Injected(RuntimeError):
    """The exception of a fault of kind ``"raise"``."""


@dataclass(frozen=True)
class Fault:
    """One fault: at the first chance from ``step`` on (1 is the first step of training), once in the life of the job."""

    step: int
    rank: int
    where: str
    what: str = "kill"

    def __post_init__(self) -> None:
        if self.where not in PLACES or self.what not in KINDS:
            raise ValueError(f"fault {self.what!r} in {self.where!r}: want one of {', '.join(KINDS)} in one of {', '.join(PLACES)}")


class Faults:
    """Breaks this rank where a plan says so.

    ``folder`` is shared by all ranks and lives as long as the job: each fault leaves a file there when it happens (a JSON object: the
    fault, ``pid``, and ``t`` in nanoseconds since 1970), which keeps it from happening again in the process that takes over.
    A file ``stop-RANK`` with ``STEP WHERE [KIND]`` in that folder asks for one more while the job runs; without a kind the rank
    calls ``stopped(where, step)`` and stands still, to be killed from outside.

    ::

        faults = Faults.seeded(seed, world=2, steps=100, count=4, rank=rank, folder=folder)
        faults.attach(session, model)      # after the session is made
    """

    def __init__(self, plan: Iterable[Fault] = (), *, rank: int, folder: str | Path, stopped: Callable[[str, int], None] = lambda where, step: None) -> None:
        self.plan, self.rank, self.folder, self.stopped = tuple(plan), rank, Path(folder), stopped
        self._session: Session | None = None
        self._forwards = (0, 0)  # a step, and how many forwards of it there were

    @classmethod
    def seeded(cls, seed: int, *, world: int, steps: int, count: int, places: Iterable[str] = PLACES, kinds: Iterable[str] = ("kill", "raise"), **more: Any) -> Faults:
        """A plan of ``count`` faults that depends on the seed alone: each in its part of the run, at a random step of it, in a random
        rank. Places are drawn without repetition as long as there are some. A fault in a recovery needs one to recover from: it
        comes with the recovery from the fault before it, in another rank where there is one."""
        draw = random.Random(seed)
        bag: list[Any] = []
        plan: list[Any] = []
        places, kinds = list(places), list(kinds)
        for i in range(count):
            bag = bag or draw.sample(places, len(places))
            if not plan and bag[0] == "resume" and len(bag) > 1:
                bag.append(bag.pop(0))
            where, what = bag.pop(0), draw.choice(kinds)
            if where == "resume" and plan:
                # Beyond what recoveries from earlier faults go back to. How far this one goes back depends on how far commits are behind.
                plan.append(Fault(1 + max((f.step for f in plan[:-1]), default=0), (plan[-1].rank + 1) % world, where, what))
                continue
            part = (steps - 2) / count
            plan.append(Fault(2 + int(part * i + draw.random() * part), draw.randrange(world), where, what))
        return cls(plan, **more)

    @classmethod
    def from_environment(cls, rank: int, stopped: Callable[[str, int], None] = lambda where, step: None) -> Faults | None:
        """The faults that the variable TRAINING_FAULTS asks for (REPLICAD_* are the launcher's): a folder, where ``plan.json`` lists
        them if there is such a file. None where it is not set."""
        folder = os.environ.get("TRAINING_FAULTS") or os.environ.get("TEXTLM_FAULT_DIR")  # the latter: `replicad demo`
        if not folder:
            return None
        try:
            plan = [Fault(**f) for f in json.loads(Path(folder, "plan.json").read_text())]
        except FileNotFoundError:
            plan = []
        return cls(plan, rank=rank, folder=folder, stopped=stopped)

    def write(self) -> None:
        """Writes the plan for :meth:`from_environment`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(json.dumps([asdict(f) for f in self.plan]))

    def happened(self) -> list[dict[str, Any]]:
        """What was injected so far, in order: the files' contents."""
        return sorted((json.loads(p.read_text()) for p in self.folder.glob("fault-*")), key=lambda f: int(f["t"]))

    def attach(self, session: Session, model: torch.nn.Module) -> None:
        """Hooks into the session and the model's middle layer; nothing of the training changes by it."""
        self._session = session
        self.folder.mkdir(parents=True, exist_ok=True)
        session._reached = self.at
        session._rank._before_capture = self._capture
        leaves = [m for m in model.modules() if not list(m.children())]
        leaves = [m for m in leaves if list(m.parameters(recurse=False))] or leaves  # FSDP1 takes parameters off their modules
        middle = leaves[len(leaves) // 2]
        middle.register_forward_pre_hook(lambda module, args: self._forward())
        middle.register_forward_hook(lambda module, args, out: self._backward(out))

    def _forward(self) -> None:
        assert self._session is not None
        step = self._session.at + 1
        self._forwards = (step, self._forwards[1] + 1 if self._forwards[0] == step else 1)
        self.at("forward" if self._forwards[1] == 1 else "accumulate", step)

    def _backward(self, out: Any) -> None:
        """Waits for the gradient of what the middle layer returned. A parameter would not do: FSDP1 computes with others."""
        session = self._session
        assert session is not None
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if getattr(t, "requires_grad", False):
                t.register_hook(lambda grad: self.at("backward", session.at + 1))
                return

    def _capture(self) -> None:
        assert self._session is not None
        if step := self._session._rank._arming:
            self.at("capture", step)

    def at(self, where: str, step: int) -> None:
        """Says where this rank is, for places that :meth:`attach` can't see; what is due there happens."""
        for i, f in enumerate(self.plan):
            if f.rank == self.rank and f.where == where and step >= f.step and self._first(i, f, step):
                self._break(f.what, where, step)
        self._asked(where, step)

    def _first(self, i: int, fault: Fault, step: int) -> bool:
        """Records that fault i happens now; False if it has happened already."""
        try:
            with open(self.folder / f"fault-{i}", "x") as f:
                json.dump({"t": time.time_ns(), "pid": os.getpid(), **asdict(fault), "step": step}, f)
        except FileExistsError:
            return False
        return True

    def _asked(self, where: str, step: int) -> None:
        request = self.folder / f"stop-{self.rank}"
        try:
            at, wanted, *what = request.read_text().split()
        except (FileNotFoundError, ValueError):
            return
        if wanted != where or step < int(at):
            return
        self.stopped(where, step)
        if not what:
            _stand()
        request.unlink(missing_ok=True)
        self._break(what[0], where, step)

    def _break(self, what: str, where: str, step: int) -> None:
        if what == "raise":
            raise Injected(f"injected in {where} of step {step}, rank {self.rank}")
        if what == "kill":
            if where != "capture":
                os.kill(os.getpid(), signal.SIGKILL)
            # The copy begins meanwhile, and the kill finds it at some point.
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL), daemon=True).start()
            return
        _stand()


def _stand() -> None:
    while True:
        time.sleep(3600)


# -- is a resumed run the same run? ---------------------------------------------------------------------------------------


class Different(AssertionError):
    """A resumed run is not the run that went through: ``name`` differs after ``step``."""

    def __init__(self, name: str, step: int, straight: str, resumed: str) -> None:
        super().__init__(f"{name} differs after step {step}: {straight} in one go, {resumed} after the resume. Everything before it is equal.")
        self.name, self.step = name, step


@dataclass(frozen=True)
class Resumption:
    """What :func:`check_resume` saw where nothing differed."""

    steps: int  #: in all
    resumed_at: int  #: the step from whose state the second process went on
    source: str  #: where it came from: "own-ram", "peer-ram", "durable"
    compared: int  #: named values that were equal


#: A generator function: it trains up to the step that it is given, and yields after each step what it wants compared (losses,
#: samples) by name.
Train = Callable[[int], Iterator[Mapping[str, Any]]]


def check_resume(train_fn: Train, *, steps: int, more: int, timeout: float = 120.0, program: str | None = None, arguments: Sequence[str] | None = None) -> Resumption:
    """Trains ``steps + more`` steps in one go, and again with a SIGKILL once step ``steps`` is committed and another process for the
    rest; compares the two after each step and raises :class:`Different` for the first thing that is not bit for bit equal.

    ``train_fn(last)`` is a generator function at the top level of a module or of a program; it makes its own :class:`replicad.Session` and yields
    once after each step::

        def train(last):
            ...model, optimizer, loader...
            with replicad.Session(model=model, optimizer=optimizer, data=loader) as session:
                for step in range(session.resume() + 1, last + 1):
                    x, y = next(batches)
                    ...
                    with session.step():
                        optimizer.step()
                    yield {"samples": (x, y), "loss": loss}

    What it yields is compared in its order (put what comes first in a step first: samples before what follows from them), and besides it every
    tensor of the session, the optimizer's and scheduler's values, the loader's place and the random generators, all by name. Both runs have one
    rank, under a daemon of their own that is started here and ended, whatever ends this process.
    A module is imported in them by its name; a program is loaded as multiprocessing loads it in a spawned child, so its main part belongs under ``if __name__ == "__main__":``.
    ``program`` is the replicad program (default: $REPLICAD, else the one on the path); ``timeout`` is in seconds, for each
    of the two runs. ``arguments`` are what the file of ``train_fn`` finds in ``sys.argv[1:]`` (default: this program's own, if that is the file, else none).
    ``ValueError`` for arguments that make no sense, ``FileNotFoundError`` where there is no such program, ``RuntimeError`` with its output where a run fails: by an exception
    of ``train_fn``, a step without a yield or with two, or the time.
    """
    if steps < 1 or more < 1:
        raise ValueError(f"check_resume: steps={steps}, more={more}: want at least one of each")
    if _in_a_run:
        raise RuntimeError(
            'check_resume is called by a process of check_resume, which loaded this program for its training function: put the call under `if __name__ == "__main__":`'
        )
    module, file = _place(train_fn)
    binary = program or os.environ.get("REPLICAD") or shutil.which("replicad")
    if not binary:
        raise FileNotFoundError("check_resume: no replicad program on the path: give program=, or set REPLICAD")
    if arguments is None:
        arguments = sys.argv[1:] if train_fn.__module__ == "__main__" else ()
    daemon = _Daemon(binary)
    with daemon:
        straight, resumed = (
            _run(daemon, name, [module, file, train_fn.__qualname__, str(steps + more), str(kill), *arguments], steps + more, timeout)
            for name, kill in (("straight", 0), ("resumed", steps))
        )
    return _compare(straight, resumed, steps)


def _place(fn: Train) -> tuple[str, str]:
    """Where another process finds this function: the name of its module ("__main__" if it is in a program that has no other) and its file."""
    if "<" in fn.__qualname__ or "." in fn.__qualname__:
        raise ValueError(f"check_resume: {fn.__qualname__} must be at the top level of its file: other processes load it from there")
    module = sys.modules[fn.__module__]
    name, file = fn.__module__, getattr(module, "__file__", None)
    if not file or not Path(file).is_file():
        raise ValueError(f"check_resume: {fn.__qualname__} is in no file ({name}): write it to one, which other processes load, and import it from there")
    if name == "__main__" and module.__spec__ is not None:
        name = module.__spec__.name  # python -m
    return name, os.path.abspath(file)


#: The longest folder that leaves room for the sockets of `replicad daemon --dev` below a temporary folder in it: a socket's path has at most 107 bytes.
_LONGEST = 107 - len("/replicad-check-12345678/replicad-dev/run/keeper.sock")


class _Daemon:
    """`replicad daemon --dev` with its state in a folder, its own temporary one if none is given; the environment for its clients. A guard beside it ends it, its
    keeper and what was started by :meth:`start` when it is left, and also when this process is killed."""

    def __init__(self, binary: str, folder: str | None = None) -> None:
        temporary = folder is None
        if folder is None:
            short = len(os.fsencode(tempfile.gettempdir())) <= _LONGEST
            folder = tempfile.mkdtemp(prefix="replicad-check-", dir=None if short else "/tmp")
        self.binary, self.folder = binary, folder
        # This process's sys.path, as PYTHONPATH: the others import what it does, from where it does.
        self.path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("REPLICAD_")} | {"XDG_STATE_HOME": folder}
        call = [sys.executable, "-c", "from replicad import testing; testing._guard()", *([folder] if temporary else [])]
        # In a session of its own, where no signal for this process's group or terminal finds it.
        self.guard = subprocess.Popen(call, env=self.env | {"PYTHONPATH": self.path}, cwd="/", stdin=subprocess.PIPE, text=True, start_new_session=True)
        self.running: list[subprocess.Popen[str]] = []
        self.drain: threading.Thread | None = None

    def start(self, *command: str, **how: Any) -> subprocess.Popen[str]:
        """Starts a process that does not outlive this one."""
        process = subprocess.Popen([self.binary, *command], text=True, **{"env": self.env, "cwd": self.folder, **how})
        self.running.append(process)
        assert self.guard.stdin is not None
        print(process.pid, file=self.guard.stdin, flush=True)
        return process

    def __enter__(self) -> dict[str, str]:
        try:
            self.start("keeper", "--socket", str(Path(self.folder, "replicad-dev", "run", "keeper.sock")))  # one that the daemon starts is nobody's child
            daemon = self.start("daemon", "--dev", "--wait-keeper", stderr=subprocess.PIPE)
            assert daemon.stderr is not None
            seen = []
            for line in daemon.stderr:
                seen.append(line)
                if '"event":"linked"' in line:
                    self.drain = threading.Thread(target=daemon.stderr.read, daemon=True)
                    self.drain.start()
                    return self.env
            raise RuntimeError("the daemon did not start:\n" + "".join(seen))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.guard.communicate()  # it ends them all once this pipe is closed, by whatever
        for process in self.running:
            process.kill()  # they have ended, unless somebody ended the guard
            process.wait()
            if process.stderr is not None:
                if self.drain is not None:
                    self.drain.join()
                process.stderr.close()


def _guard() -> None:
    """Ends processes whose ids come on the standard input once that is closed, which is when its other end was left or ended, by SIGKILL too; and removes the folder that was
    given. It asks the last one first: the launcher ends its ranks, and the daemon is still there."""
    running = []
    for line in sys.stdin:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            running.append(os.pidfd_open(int(line)))
    for process in reversed(running):
        for ask, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, ask)
            if select.select([process], [], [], patience)[0]:
                break
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


def _run(daemon: _Daemon, name: str, train: Sequence[str], last: int, timeout: float) -> list[dict[str, Any]]:
    """One of the two runs: what its processes wrote. RuntimeError with what they printed if it did not come to its end."""
    out, log = Path(daemon.folder, f"{name}.jsonl"), Path(daemon.folder, f"{name}.log")
    command = [sys.executable, "-c", "from replicad import testing; testing._main()", str(out), *train]
    with open(log, "w") as printed:
        launcher = daemon.start(
            "run", "--dev", "--job", name, "--world", "1", "--min-copies", "1", "--", *command,
            env=daemon.env | {"PYTHONPATH": daemon.path}, cwd=None, stdout=printed, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        status = launcher.wait(timeout)
    except subprocess.TimeoutExpired:
        said = log.read_text(errors="replace")[-8000:]
        advice = "if it only takes long, give check_resume a longer timeout= or fewer steps"
        raise RuntimeError(f"the {name} run has not ended after {timeout:g} s; {advice}. It printed so far:\n{said or '(nothing)'}") from None
    said = log.read_text(errors="replace")[-8000:]
    if status:
        said = said.partition("replicad run: terminated:")[0]  # by _main: that the job could be gone on with is no help here
        raise RuntimeError(f"the {name} run failed (status {status}):\n{said}")
    records = [json.loads(line) for line in out.read_text().splitlines()]
    if (at := max((r["step"] for r in records if "step" in r), default=0)) < last:
        raise RuntimeError(f"the {name} run ended after step {at}: it was asked to train, and to yield after each step, up to {last}. It printed:\n{said}")
    return records


def _compare(straight: list[dict[str, Any]], resumed: list[dict[str, Any]], killed: int) -> Resumption:
    want = {r["step"]: r["values"] for r in straight if "step" in r}
    starts = [r for r in resumed if "resumed" in r]
    if len(starts) < 2 or starts[-1]["resumed"] != killed:
        raise AssertionError(f"killed after step {killed} was committed, the job went on from {[s['resumed'] for s in starts][1:]}")
    compared = 0
    for r in (r for r in resumed if "step" in r):
        a, b = want[r["step"]], r["values"]
        for name in [*a, *(n for n in b if n not in a)]:
            if a.get(name) != b.get(name):
                raise Different(name, r["step"], a.get(name, "nothing"), b.get(name, "nothing"))
            compared += 1
    return Resumption(max(want), killed, starts[-1]["source"], compared)


def _named(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """A tree of values as (name, text or digest), leaf by leaf."""
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield from _named(v, f"{name}.{k}")
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from _named(v, f"{name}[{i}]")
    elif hasattr(value, "detach"):
        import torch

        t = value.detach().cpu().contiguous()
        yield name, f"{t.dtype} {tuple(t.shape)} {hashlib.sha256(t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b'').hexdigest()[:32]}"
    elif isinstance(value, (bytes, bytearray)) or hasattr(value, "tobytes") or type(value).__name__ == "Opaque":
        yield name, hashlib.sha256(value.tobytes() if hasattr(value, "tobytes") else bytes(value)).hexdigest()[:32]
    else:
        yield name, repr(value)


def _state(session: Session) -> Iterator[tuple[str, str]]:
    """Everything that a session keeps, in the order in which a difference is looked for: what the step drew and saw first, for
    that is the cause where weights differ."""
    own = session._objects.before()
    yield from _named(own["data"], "data")
    for leaf in session._objects.leaves:
        yield from _named(leaf.local, leaf.name)
    yield from _named(session._read_shared(), "shared")
    yield from _named(session._objects.after(), "own")
    yield from _named(own["rng"], "rng")


def _seed(n: int) -> None:
    """Generators that nobody seeds differ from process to process, which is no fault of a resume."""
    import torch

    random.seed(n)
    torch.manual_seed(n)
    if np := sys.modules.get("numpy"):
        np.random.seed(n)


def _load(module: str, file: str) -> Any:
    """The module of this name, or the program in the file, which has none."""
    if module != "__main__":
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as err:  # pytest gives names that nobody can import
            if not f"{module}.".startswith(f"{err.name}."):
                raise
    # As multiprocessing has it in a spawned child: what is pickled here by reference is found there, and what is pickled there here; and
    # `if __name__ == "__main__":` does not hold.
    loader = SourceFileLoader("__mp_main__", file)
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    program = module_from_spec(spec)
    program.__spec__ = None  # else it would look for a module of that name, not for the file
    sys.modules["__main__"] = sys.modules[loader.name] = program
    loader.exec_module(program)
    return program


#: Whether this is a process of check_resume's.
_in_a_run = False


def _main() -> None:
    """One process of :func:`check_resume`: OUT MODULE FILE FUNCTION LAST KILL [ARGUMENT...]."""
    global _in_a_run
    _in_a_run = True
    launcher = os.getppid()
    out, module, file, function, last, kill, *arguments = sys.argv[1:]
    sys.argv = [file, *arguments]
    sys.path[:] = os.environ["PYTHONPATH"].split(os.pathsep)  # nothing before it
    try:
        train = getattr(_load(module, file), function)
        _record(train, int(last), int(kill), Path(out))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        if os.getppid() == launcher:
            os.kill(launcher, signal.SIGTERM)  # it would start it again
        raise SystemExit(1) from None


def _record(train: Train, last: int, kill: int, path: Path) -> None:
    """Trains, and writes down what is to be compared after each step."""
    from . import session as sessions

    at = -1
    with open(path, "a", buffering=1) as out:
        killed = any("killed" in json.loads(line) for line in path.read_text().splitlines())
        _seed(out.tell())  # the same in the first process of each run; another one where the state has to come from the resume
        for yielded in train(last):
            session = sessions._open
            if session is None:
                raise RuntimeError("no replicad.Session is open at the yield: yield inside of it")
            if at < 0:
                at = session.order.step
                out.write(json.dumps({"resumed": at, "source": session.order.source}) + "\n")
            if session.at != at + 1:
                seen = f"step {at + 1} had no yield" if session.at > at else f"a yield before the end of step {at + 1}"
                advice = "want one after each step, behind its `with session.step()`; what its micro-batches have goes into one: `yield {'losses': losses}`"
                raise RuntimeError(f"check_resume: {seen}: {advice}")
            at = session.at
            values = {n: v for key, value in yielded.items() for n, v in _named(value, key)} | dict(_state(session))
            out.write(json.dumps({"step": at, "values": values}) + "\n")
            # Steps that are faster than commits would find no free slot, and their captures be skipped.
            while session.committed < at:  # the daemon writes that word; nobody calls
                time.sleep(0.001)
            if at == kill and not killed:
                out.write(json.dumps({"killed": at}) + "\n")
                os.kill(os.getpid(), signal.SIGKILL)
