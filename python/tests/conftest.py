"""What the tests share: a real daemon, programs run as ranks by a real launcher, and what to do where torch is missing."""

from __future__ import annotations

import ast
import gc
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from pace import Limit, patient
from warm import Launched, Warm

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "python" / "src"
#: On the path of a command: its processes start quickly where they import torch (standin.py).
STARTUP = str(Path(__file__).with_name("startup"))
#: No test asserts a time; this bounds waits for what should have happened long ago. What waits in short pieces has a pace.Limit of it.
QUIET = 300.0
PATIENCE = patient(QUIET)

#: A fifth of what these tests took of the processor went to Go's threads in daemons and launchers, which look for work of each other. Daemons with all of their threads are
#: those of internal/trouble, the demo and chaos.
os.environ.setdefault("GOMAXPROCS", "1")

sys.path.insert(0, str(SRC))

from replicad._core import preloading  # isort: skip: found there
from replicad._preload.replicad_preload import NATIVE  # isort: skip
from replicad.testing import check  # isort: skip

gc.disable()  # until all is imported: see standin.py
try:
    import torch  # noqa: F401

    HAVE_TORCH = True
except ImportError:
    HAVE_TORCH = False


def torchs(file: Path) -> bool:
    """Whether a test file begins by importing torch, or numpy, which is installed with it. The programs in its texts do not count."""
    for line in ast.parse(file.read_text()).body:
        if isinstance(line, ast.Import) and {alias.name.partition(".")[0] for alias in line.names} & {"torch", "numpy"}:
            return True
        if isinstance(line, ast.ImportFrom) and line.module and line.module.partition(".")[0] in ("torch", "numpy"):
            return True
        if isinstance(line, (ast.Expr, ast.Assign)) and ast.unparse(line.value).startswith("pytest.importorskip("):
            return True
    return False


NEEDS_TORCH = sorted(file.name for file in Path(__file__).parent.glob("test_*.py") if torchs(file))
collect_ignore = [] if HAVE_TORCH else NEEDS_TORCH


def pytest_configure(config: pytest.Config) -> None:
    # A shell's job in the background ignores SIGINT, and so would each program of a test: one that ends by Ctrl-C did not end.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not HAVE_TORCH and os.environ.get("CI"):
        pytest.exit("torch is missing, and CI runs every test: see python/requirements-torch.txt", returncode=1)
    if not (ROOT / "bin" / "replicad").exists():
        pytest.exit("bin/replicad is missing: run `make py-test` (or `make build` first)", returncode=1)


#: What takes longest, the longest first.
LONGEST = [
    "test_check_resume.py", "test_docs.py", "test_preload.py", "test_restarts.py", "test_jobs.py", "test_gpu_test.py", "test_device.py",
    "test_huggingface.py", "test_first_step.py", "test_growth.py", "test_endings.py", "test_grows_inprocess.py", "test_behind.py",
    "test_lightning.py", "test_from.py", "test_gathering.py", "test_published.py", "test_loops.py", "test_grows.py", "test_reports.py",
    "test_steps.py", "test_dcp.py", "test_remedies.py", "test_stateful_loader.py", "test_staging.py", "test_zero.py",
]  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Side by side with others the files that take longest come first, or one would be waited for alone at the end. The order is that of the workers, which know of no others."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    preloading.freeze()  # what looks through the objects of a program finds those of tests, and not 400,000 of imports again and again
    gc.enable()


def _used() -> float:
    """Seconds of the processor that this process took, and the children it has waited for."""
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What a test takes of the processor is beside its seconds in bin/slowest.md."""
    before = _used()
    try:
        yield
    finally:
        item.user_properties.append(("processor", f"{_used() - before:.2f}"))


def pytest_report_header() -> str:
    return "" if HAVE_TORCH else f"torch is missing, so these are SKIPPED: {', '.join(NEEDS_TORCH)}"


def has_torch(program: str) -> bool:
    """Whether a program imports torch first of all."""
    return re.search(r"^import (.*, )?torch\b", program, re.M) is not None


def quick(program: str) -> str:
    """The program, which starts and ends in half the time if it imports torch: see standin.py."""
    first = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import quick; del sys.path[0]\n"
    return first + program.removeprefix("\n") if has_torch(program) else program


#: What libraries and Python look at when they are loaded, by the beginnings of variables' names.
_LOADED_WITH = ("PYTHON", "REPLICAD_", "TORCH", *NATIVE)
#: By what they see of the environment, and by their further imports; who was used last comes last.
_warm: dict[tuple[tuple[str, str], ...], dict[tuple[str, ...], Warm]] = {}


def warm(env: dict[str, str], imports: tuple[str, ...] = ()) -> Warm:
    """The process that programs with torch fork from: one for each process that runs tests, and another one where libraries would see another environment. With further
    ``imports`` it has forked from that one. Of each, the last few are kept."""
    seen = tuple(sorted((k, v) for k, v in env.items() if k.startswith(_LOADED_WITH)))
    family = _warm.pop(seen, None) or {(): Warm.begin(env)}
    _warm[seen] = family
    while len(_warm) > 2:
        ended(_warm.pop(next(iter(_warm))))
    if imports:
        family[imports] = family.pop(imports, None) or family[()].with_imports(imports)
        while len(family) > 4:
            family.pop(next(name for name in family if name)).end()
    return family[imports]


def ended(family: dict[tuple[str, ...], Warm]) -> None:
    """Launchers that they have started need them no more."""
    for process in family.values():
        process.end()


def imports(file: Path) -> tuple[str, ...]:
    """The statements by which a file imports."""
    found = [line for line in ast.parse(file.read_text()).body if isinstance(line, (ast.Import, ast.ImportFrom))]
    return tuple(ast.unparse(line) for line in found if not (isinstance(line, ast.ImportFrom) and line.module == "__future__"))


def launched(run: list[str], program: list[str], env: dict[str, str], folder: Path, forks: bool = True, imports: tuple[str, ...] = ()) -> subprocess.Popen[str] | Launched:
    """The launcher ``replicad run ... -- PROGRAM``, whose ranks fork, with these ``imports`` behind them, or are fresh processes."""
    command = [*run, "--", *program]
    if forks:
        return warm(env, imports).launch(command, program, env, folder)
    return subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Once called, the ranks of check_resume and check_generation fork, with these imports behind them: no process of theirs has to import torch anew."""

    def call(*imports: str) -> None:
        def run(daemon: check.Daemon, name: str, command: list[str], timeout: float, *flags: str, world: int = 1) -> tuple[int, str]:
            path = tmp_path / f"{name}.py"
            path.write_text(f"import os\nos.environ['PYTHONPATH'] = {daemon.path!r}\n{command[2]}\n")
            own = [f for f in flags if f not in check.ONCE]
            numbers = ",".join(map(str, range(world)))
            line = [daemon.binary, "run", "--dev", "--job", name, "--world", str(world), "--ranks", numbers, "--min-copies", "1", *own]
            job = Job.of(launched(line, [sys.executable, str(path), *command[3:]], environment(XDG_STATE_HOME=daemon.folder), tmp_path, imports=imports), name)
            status = job.wait()
            return status, job.printed().partition("replicad run: terminated:")[0] if status else job.printed()

        monkeypatch.setattr(check, "launched", run)

    return call


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # what is never freed at the end C++ libraries print as leaks
    while _warm:
        ended(_warm.popitem()[1])


def environment(**more: str) -> dict[str, str]:
    """An environment without anything of a rank, in which the package of this checkout is found. Ranks share few cores, and threads of torch's that wait for each other spin."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("REPLICAD_", "XDG_", "PYTHON"))}
    return env | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"} | more


def installed(folder: Path) -> Path:
    """A folder on the path by which the package of this checkout is installed, as far as others look: it has the entry points of the wheel."""
    info = folder / "replicad-0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: replicad\nVersion: 0\n")
    points = re.findall(r'^\[project\.entry-points\."(.+)"\]\n((?:\w+ = ".+"\n)+)', (ROOT / "python" / "pyproject.toml").read_text(), re.M)
    info.joinpath("entry_points.txt").write_text("".join(f"[{group}]\n" + names.replace('"', "") for group, names in points))
    return folder


class Lines:
    """The lines of a process's output as they come; waiting for one fails the test when the output ends first."""

    def __init__(self, stream: IO[str], tell: Callable[[], str] = lambda: "") -> None:
        self.seen: list[str] = []
        self._tell = tell  # what else to say when it fails
        self._all: list[str] = []
        self._ended = False
        self._new: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._all.append(line.rstrip("\n"))
                self._new.put(self._all[-1])
        self._new.put(None)

    def until(self, text: str) -> str:
        """The next line that holds ``text``."""
        while True:
            line = self._next(repr(text))
            if line is None:
                raise AssertionError(f"the output ended without {text!r}:\n{self}")
            if text in line:
                return line

    def rest(self) -> None:
        """Takes in all that is still to come."""
        while not self._ended:
            self._next("the end of an output")

    def _next(self, what: str) -> str | None:
        """The next line, None behind the last one."""
        limit = Limit(QUIET, what)
        while True:
            try:
                line = self._new.get(timeout=1)
                break
            except queue.Empty:
                if limit.over():
                    raise AssertionError(f"no {what} within {QUIET} s of a quiet machine in:\n{self}") from None
        if line is None:
            self._ended = True
        else:
            self.seen.append(line)
        return line

    def __str__(self) -> str:
        return "\n".join([*self._all[-100:], self._tell()])


def stream(of: IO[str] | None) -> IO[str]:
    """A pipe that was asked for."""
    assert of is not None
    return of


@dataclass
class Job:
    """A `replicad run` and what it printed (its processes' output too)."""

    process: subprocess.Popen[str] | Launched
    name: str
    out: Lines = field(repr=False)

    @classmethod
    def of(cls, process: subprocess.Popen[str] | Launched, name: str, tell: Callable[[], str] = lambda: "") -> Job:
        """The job of a launcher; ``tell`` says what else to say when it fails."""
        return cls(process, name, Lines(stream(process.stdout), tell))

    def until(self, text: str) -> str:
        """The next line of output with this text."""
        return self.out.until(text)

    def kill(self, sig: int = signal.SIGKILL, pid: int = 0) -> None:
        """Signals a process of the job, the launcher by default."""
        os.kill(pid or self.process.pid, sig)

    def wait(self) -> int:
        """The launcher's exit code."""
        self.out.rest()
        return self.process.wait(PATIENCE)

    def printed(self) -> str:
        """All of the output so far, as far as anybody has waited for it."""
        return "\n".join(self.out.seen)

    def done(self) -> str:
        """All of the output of a job that must end well."""
        code = self.wait()
        assert code == 0, f"the job ended with {code}:\n{self.out}"
        return str(self.out)


#: With these a launcher does not start its ranks at once.
_OWN_STARTS = {"--spare", "--capacity", "--warm"}


class Daemon:
    """`replicad daemon --dev` in a folder of its own, with its own loopback address."""

    target: tuple[str, ...] = ("--dev",)  # how verbs name it

    def __init__(self, program: Path = ROOT / "bin" / "replicad", env: dict[str, str] | None = None) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="replicad-py-"))  # short: sockets have paths of 107 bytes at most
        self.program = program
        self.env = {**(env or environment()), "XDG_STATE_HOME": str(self.dir)}
        self.socket = self.dir / "replicad-dev" / "run" / "ranks.sock"
        self.keeper = 0
        self.process: subprocess.Popen[str] | None = None
        self.jobs: list[Job] = []
        self.start()

    def start(self) -> None:
        """Starts the daemon and waits until it can be used."""
        self.launch()
        self.ready()

    def launch(self, *flags: str) -> None:
        """Starts the daemon."""
        self.process = subprocess.Popen([str(self.program), "daemon", *self.target, *flags], env=self.env, cwd=self.dir, stderr=subprocess.PIPE, text=True)
        self.log = Lines(stream(self.process.stderr))

    def ready(self) -> None:
        """Waits until it has a leader."""
        self.log.until('"event":"linked"')
        for line in self.log.seen:
            if '"keeper_started"' in line:
                self.keeper = int(json.loads(line)["pid"])

    def run(
        self,
        program: str,
        *args: str,
        world: int = 1,
        name: str = "",
        flags: tuple[str, ...] = (),
        python: str = sys.executable,
        fresh: bool = False,
        imports: tuple[str, ...] = (),
    ) -> Job:
        """Runs a Python program as the ranks of a job. One with torch forks from a process that has imported it, and ``imports`` (:func:`warm`), unless ``fresh`` has each life
        start anew, or its flags have it start in a way of its own."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        path, program = self.dir / f"{name}.py", textwrap.dedent(program)
        forks = not fresh and has_torch(program) and python == sys.executable and not _OWN_STARTS & set(flags)
        path.write_text(program if forks else quick(program))
        # A launcher that names its ranks starts them at once, before any process could wait for one; without, they are offered to whoever comes within a second.
        own = () if {"--ranks", *_OWN_STARTS} & set(flags) else ("--ranks", ",".join(map(str, range(world))))
        more = ("--preload", "none") if fresh else ()
        command = [str(self.program), "run", *self.target, "--job", name, "--world", str(world), "--min-copies", "1", *own, *more, *flags]
        process = launched(command, [python, str(path), *args], self.env, self.dir, forks, imports)
        job = Job.of(process, name, lambda: f"The daemon ({self.process and self.process.poll()}):\n{self.log}")
        self.jobs.append(job)
        return job

    def verb(self, *args: str) -> str:
        """Output of another verb of the program, which ends well."""
        done = subprocess.run([str(self.program), *args], env=self.env, cwd=self.dir, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, f"{' '.join(args)} ended with {done.returncode}: {done.stderr}\nThe daemon:\n{self.log}"
        return done.stdout

    def stop(self) -> None:
        """Ends the daemon, its keeper, and what it ran."""
        for job in self.jobs:
            if job.process.poll() is None:
                job.process.kill()
            job.wait()
        assert self.process is not None
        self.process.terminate()
        self.log.rest()
        code = self.process.wait(PATIENCE)
        if self.keeper:
            fd = os.pidfd_open(self.keeper)
            try:
                signal.pidfd_send_signal(fd, signal.SIGTERM)
            finally:
                os.close(fd)
        shutil.rmtree(self.dir, ignore_errors=True)
        assert code == 0, f"the daemon ended with {code}:\n{self.log}"


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """One daemon for all tests that don't harm it."""
    d = Daemon()
    try:
        yield d
    finally:
        d.stop()


@pytest.fixture
def own_daemon() -> Iterator[Daemon]:
    """A daemon for one test alone."""
    d = Daemon()
    try:
        yield d
    finally:
        d.stop()


@pytest.fixture
def run(daemon: Daemon) -> Callable[..., str]:
    """Runs a program as the ranks of a job to its good end; returns its output."""

    def call(program: str, *args: str, world: int = 1) -> str:
        return daemon.run(program, *args, world=world).done()

    return call
