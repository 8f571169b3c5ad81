"""Restarts fork from a process that has imported what the program's first life imported: a forked process is as a fresh one, and what may not be imported
beforehand costs a line, never a recovery."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from conftest import HAVE_TORCH, PATIENCE, SRC, Daemon, Job, Lines, stream

#: A rank without torch. Each life says what it is, trains a step, and waits to be killed, for what it is to do, or for the end.
RANK = """
import ctypes, os, signal, sys, time
IMPORTS
from replicad import Rank, Region
import described

memory = (ctypes.c_uint8 * 64)()
rank = Rank.open()
rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
rank.attach()
while True:
    order = rank.join()
    if not order.initialise:
        break
    rank.seal_initial()
rank.load(); rank.ready()
life = described.now()
with open(f"{sys.argv[0]}.{os.getpid()}", "w") as f:
    f.write(life)
step = order.step + 1
rank.step_enter(step); rank.step_exit(step); rank.commit(step)
os.write(1, b"STEPPED %d\\n" % os.getpid())
while not os.path.exists(sys.argv[0] + ".go"):
    signal.sigtimedwait([], 0.01)
    if os.path.exists(how := sys.argv[0] + ".how"):
        with open(how) as f:
            text = f.read()
        os.unlink(how)
        exec(text)
rank.leave()
"""

#: What a life says of its process. Beside the program, so it is the program's own.
DESCRIBED = """
import ctypes, gc, json, locale, os, random, resource, signal, sys, threading, warnings

def read(name):
    with open(f"/proc/self/{name}", "rb") as f:
        return f.read().decode(errors="replace")

def kinds():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        kind = target.split(":")[0] if ":" in target else target
        if not target.startswith("/proc/"):
            found[fd] = [kind, os.get_inheritable(int(fd))]
    return found

def environ():
    libc = ctypes.CDLL(None)
    p, found, i = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ"), [], 0
    while p[i]:
        found.append(p[i].decode())
        i += 1
    return sorted(found)

def now():
    status = dict(line.split(":", 1) for line in read("status").splitlines() if ":" in line)
    said = {
        "parent is": os.path.basename(os.readlink(f"/proc/{os.getppid()}/exe")),
        "ppid": os.getppid(),
        "leads its group": os.getpgid(0) == os.getpid(), "session": os.getsid(0), "session of the parent": os.getsid(os.getppid()),
        "environ": sorted(f"{k}={v}" for k, v in os.environ.items()), "environ of C": environ(),
        "argv": sys.argv, "orig_argv": sys.orig_argv, "cmdline": read("cmdline"), "comm": read("comm"), "exe": os.readlink("/proc/self/exe"),
        "executable": [sys.executable, sys.prefix, sys.base_prefix], "cwd": os.getcwd(), "umask": status["Umask"],
        "fds": kinds(), "signals": [status[n] for n in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd")], "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "handlers": [repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)],
        "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
        "cgroup": read("cgroup"), "oom_score_adj": read("oom_score_adj"), "nice": os.getpriority(os.PRIO_PROCESS, 0), "scheduler": os.sched_getscheduler(0),
        "affinity": sorted(os.sched_getaffinity(0)), "capabilities": status["CapEff"],
        "path": sys.path, "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "importers": sorted(p for p in sys.path_importer_cache if "_preload" in p), "flags": repr(sys.flags), "warnings": repr(warnings.filters),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.settrace is None, sys.getprofile() is None],
        "type of environ": type(os.environ).__name__,
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
        "threads": [threading.current_thread().name, threading.main_thread() is threading.current_thread(), threading.main_thread().native_id == os.getpid()],
        "streams": [[s.name, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.fileno()] for s in (sys.stdin, sys.stdout, sys.stderr)],
        "locale": locale.setlocale(locale.LC_ALL), "main": [__import__("__main__").__name__, __import__("__main__").__file__, repr(__import__("__main__").__spec__)],
        "ours": sorted(n for n in sys.modules if "preload" in n and n != "replicad._core.preloading"),
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    }
    said["order in sets"] = hash("text")
    said["random"] = random.random()
    for name, of in OTHERS.items():
        if name in sys.modules:
            said.update(of(sys.modules[name]))
    return json.dumps(said)

OTHERS = {
    "numpy": lambda np: {"drawn by numpy": float(np.random.rand())},
    "torch": lambda torch: {
        "torch": [torch.__config__.parallel_info(), torch.get_num_threads(), torch.get_num_interop_threads(), str(torch.get_default_dtype()),
                  torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(), torch.cuda.is_initialized()],
        "drawn by torch": torch.rand(4).tolist()[0], "seed of torch": torch.initial_seed(),
        "tasks": len(os.listdir("/proc/self/task")),
    },
}
"""


#: What no two processes have in common.
DRAWN = ("random", "drawn by numpy", "drawn by torch", "seed of torch")


class Lives:
    """The lives of a job's rank 0."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder, self.at = job, folder, dict[str, int]()

    def next(self) -> dict[str, Any]:
        """What the next life says of itself, once it has trained a step."""
        self.pid = int(self.job.until("STEPPED").split()[-1])
        return dict(json.loads((self.folder / f"{self.job.name}.py.{self.pid}").read_text()))

    def again(self) -> dict[str, Any]:
        """Kills this life."""
        os.kill(self.pid, signal.SIGKILL)
        return self.next()

    def does(self, daemon: Daemon, text: str) -> None:
        """Has this life execute something."""
        path = daemon.dir / f"{self.job.name}.py.how"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def said(self, text: str) -> str:
        """A line of the launcher with a text, the next one that was not asked for yet: lines of ranks, and of another text, come when they like."""
        seen, at = self.job.out.seen, self.at.get(text, 0)
        at = next((i for i, line in enumerate(seen[at:], at) if text in line), len(seen))
        if at == len(seen):
            self.job.until(text)
            at = len(seen) - 1
        self.at[text] = at + 1
        return seen[at]

    def ready(self) -> int:
        """Waits for the process that restarts fork from; its process id."""
        line = self.said("restarts fork from process")
        return int(line.partition("process ")[2].split(",")[0])

    def end(self, daemon: Daemon) -> str:
        """The output of the whole job, which ends well."""
        (daemon.dir / f"{self.job.name}.py.go").touch()
        return self.job.done()


class World:
    """A folder of packages, and programs that have it on their path."""

    def __init__(self, daemon: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.daemon, self.folder = daemon, folder
        self.site = folder / "site-packages"
        self.site.mkdir()
        self.patch = monkeypatch
        self.package("good", "x = 1")
        (daemon.dir / "described.py").write_text(DESCRIBED)
        self.environment()

    def environment(self, **more: str) -> None:
        """Of programs that are run from now on."""
        env = {k: v for k, v in self.daemon.env.items() if not k.startswith(("LC_", "LANG"))}  # Python sets LC_CTYPE itself
        self.patch.setattr(self.daemon, "env", env | {"PYTHONPATH": f"{SRC}:{self.site}"} | more)

    def package(self, name: str, text: str) -> None:
        """Installs a module."""
        (self.site / f"{name}.py").write_text(text)

    def run(self, imports: str = "import good", *args: str, **more: Any) -> Lives:
        """A job of one rank."""
        return Lives(self.daemon.run(RANK.replace("IMPORTS", imports), *args, **more), self.daemon.dir)

    def lines(self, lives: Lives) -> list[str]:
        """What the launcher has said of restarts in a job that now ends well."""
        return [line.partition("replicad run: ")[2] for line in lives.end(self.daemon).splitlines() if re.match("replicad run: .*(restarts|anew)", line)]


@pytest.fixture
def world(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(daemon, tmp_path, monkeypatch)


def compared(said: dict[str, Any]) -> dict[str, Any]:
    """What must be equal of a fresh life and of a forked one, in two jobs."""
    said = {k: v for k, v in said.items() if k not in (*DRAWN, "ppid", "session", "session of the parent")}
    for name in ("environ", "environ of C"):
        said[name] = [e for e in said[name] if not e.startswith(("REPLICAD_PRELOAD=", "REPLICAD_PROCESS="))]
    return said


TORCH = "import good\nfrom numpy import random\nfrom torch import nn"  # without tests/standin.py, which has its own finder


@pytest.mark.parametrize("imports", ["import good", pytest.param(TORCH, marks=pytest.mark.skipif(not HAVE_TORCH, reason="torch"))], ids=["plain", "torch"])
def test_a_forked_process_is_as_a_fresh_one(world: World, imports: str) -> None:
    # A sitecustomize of the user's own, and what else of the environment Python looks at.
    world.package("sitecustomize", "import os\nos.environ['FROM_SITECUSTOMIZE'] = os.environ['REPLICAD_RANK']")
    world.environment(PYTHONWARNINGS="ignore::ResourceWarning", MINE="ö", OMP_NUM_THREADS="2")
    name = f"t-same-{os.getpid()}-{len(imports)}"
    lives = world.run(imports, name=name, flags=("--preload", "none"))
    lives.next()
    fresh = lives.again()
    lives.end(world.daemon)
    (world.daemon.dir / f"{name}.py.go").unlink()

    lives = world.run(imports, name=name)
    first = lives.next()
    lives.ready()
    second = lives.again()
    third = lives.again()
    out = lives.end(world.daemon)
    assert out.count("forked from process") == 2, out
    assert compared(second) == compared(fresh)
    assert second["ppid"] == first["ppid"] == lives.job.process.pid
    assert second["session"] == second["session of the parent"] == first["session"]
    for drawn in {*DRAWN} & second.keys():
        assert len({first[drawn], second[drawn], third[drawn]}) == 3, drawn


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(7)", 7), ("raise RuntimeError('over')", 1), ("os.kill(os.getpid(), signal.SIGTERM)", 143), ("os._exit(9)", 9)])
@pytest.mark.parametrize("preload", ["auto", "none"])
def test_ends_of_forked_processes_are_those_of_fresh_ones(world: World, ending: str, status: int, preload: str) -> None:
    """Each is reported and led to another life: after an exit, an exception and a signal."""
    lives = world.run(flags=("--preload", preload))
    lives.next()
    if preload == "auto":
        lives.ready()
    lives.again()
    lives.does(world.daemon, ending)
    lives.said(f"process {lives.pid} ended with status {status}")
    lives.next()
    out = lives.end(world.daemon)
    assert out.count("forked from process") == (2 if preload == "auto" else 0)
    assert ("RuntimeError: over" in out) == ("over" in ending), "standard error of a forked process"


@pytest.mark.parametrize("preload", ["auto", "none"])
def test_processes_that_wait_are_forked(world: World, preload: str) -> None:
    """The first one that waits cannot be: nobody knows the program's imports yet."""
    lives = world.run(flags=("--warm", "1", "--preload", preload))
    lives.next()
    first = lives.said("waits for a rank")
    if preload == "auto":
        lives.ready()
    if f"process {lives.pid} " in first:  # it was there before the rank was given out
        first = lives.said("waits for a rank")
    lives.again()
    assert f"process {lives.pid} waits" in first
    second = lives.said("waits for a rank")
    assert ("forked from process" in second) == (preload == "auto"), second
    lives.again()
    assert f"process {lives.pid} waits" in second
    lives.end(world.daemon)


@pytest.mark.parametrize("preload", ["auto", "none"])
def test_a_spare_forks_what_it_has_run_once(world: World, preload: str) -> None:
    """Its first life of the program imports."""
    first = world.run()
    first.next()
    spare = world.run(name=first.job.name, flags=("--spare", "--preload", preload))
    spare.said("spare and starts when a rank is lost")
    first.job.kill()
    spare.next()
    if preload == "auto":
        spare.ready()
    spare.again()
    assert spare.end(world.daemon).count("forked from process") == (1 if preload == "auto" else 0)
    first.job.out.rest()


def test_a_forked_process_ends_with_its_launcher(world: World) -> None:
    lives = world.run()
    lives.next()
    server = lives.ready()
    lives.again()
    fds = [os.pidfd_open(pid) for pid in (lives.pid, server)]
    lives.job.kill()
    for fd in fds:
        assert select.select([fd], [], [], PATIENCE)[0]
        os.close(fd)
    lives.job.out.rest()
    world.daemon.verb("job", "end", *world.daemon.target, lives.job.name)


#: Modules that may not be imported beforehand, and what is said of them. BEFORE is true in that process alone.
BAD = {
    "a thread": ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "starts a thread when it is imported"),
    "a process": ("import os, signal\nif os.fork() == 0:\n    signal.pause()", "starts a process when it is imported"),
    "a fork that goes on": ("import os\nif BEFORE:\n    os.fork()", "starts a process when it is imported"),
    "a socket": ("import socket\ns = socket.socket()", "keeps socket:"),
    "a pipe": ("import os\np = os.pipe()", "keeps pipe:"),
    "a file to write": ("import os\nf = open(os.environ['HOME'] + '/written', 'a')", "keeps "),
    "the rank": ("import os\nr = os.environ.get('RANK')", "reads RANK when it is imported"),
    "the job": ("import os\nr = 'REPLICAD_JOB' in os.environ", "reads REPLICAD_JOB when it is imported"),
    "what the program sets": ("import os\nr = os.getenv('MINE')", "reads MINE when it is imported, which the program sets itself"),
    "an exit": ("import sys\nif BEFORE:\n    sys.exit(3)", "ends the program when it is imported (SystemExit)"),
    "a hard exit": ("import os\nif BEFORE:\n    os._exit(3)", "ends the program when it is imported (exit status 3)"),
    "a crash": ("import os\nif BEFORE:\n    os.abort()", "ends the program when it is imported (signal: aborted"),
    "a module of the program's": ("import described", "imports described, of which the program has its own"),
    "one that it tries": ("try:\n    import described\nexcept ImportError:\n    pass", "imports described, of which the program has its own"),
    "a file to read": ("f = open(__file__)", "keeps "),
    "a lock": ("import multiprocessing\nl = multiprocessing.Lock()", "memory when it is imported that forks would share"),
    "an mmap": ("import mmap\nm = mmap.mmap(-1, 4096)", "memory when it is imported that forks would share"),
    "random numbers": ("import random\nx = random.random()", "draws numbers of random when it is imported"),
}


@pytest.mark.parametrize("kind", BAD)
def test_modules_that_may_not_be_imported_beforehand(world: World, kind: str) -> None:
    """They are left out by name, with what imports them; restarts fork without them, and the program imports them as ever."""
    text, why = BAD[kind]
    world.environment(HOME=str(world.folder))
    world.package("bad", text.replace("BEFORE", "'replicad_preload' in __import__('sys').modules"))
    world.package("uses", "import bad")
    lives = world.run("import os\nos.environ['MINE'] = 'mine'\nimport uses, good")
    lives.next()
    lives.ready()
    lives.again()
    lines = world.lines(lives)
    assert "forked from process" in str(lives.job.out)
    assert all(line.startswith(("restarts import bad anew: it ", "restarts import uses anew: it ", "restarts fork from")) for line in lines), lines
    assert any(line.startswith("restarts import ") and why in line for line in lines), lines


def test_variables_that_imports_set_are_set_in_forks(world: World) -> None:
    """And who reads them may be imported; who reads what the program sets, under a name that libraries read, may not be."""
    world.package("sets", "import os\nos.environ['KMP_SET'] = '1'\nos.environ.setdefault('OF_SETS', 'x')\nos.environ.pop('GONE', None)")
    world.package("reads", "import os\nr = os.environ['KMP_SET'], os.environ['OF_SETS']")
    world.environment(GONE="1")
    lives = world.run("import sets, reads")
    lives.next()
    lives.ready()
    second = lives.again()
    assert {"KMP_SET=1", "OF_SETS=x"} <= set(second["environ"]) & set(second["environ of C"])
    assert "GONE=1" not in second["environ"] + second["environ of C"]
    assert len(world.lines(lives)) == 1


def test_libraries_whose_threads_the_program_counts(world: World) -> None:
    lives = world.run("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport good")
    lives.next()
    lives.said("restarts import anew: the program sets OMP_NUM_THREADS itself, which libraries read when they are loaded: set it before `replicad run`")
    lives.again()
    assert "forked from process" not in lives.end(world.daemon)


def test_packages_that_change_while_the_job_runs(world: World) -> None:
    world.package("good", "x = 1")
    lives = world.run("import good\nprint('GOOD', good.x, flush=True)")
    lives.job.until("GOOD 1")
    lives.next()
    lives.ready()
    world.package("good", "x = 22")
    os.kill(lives.pid, signal.SIGKILL)
    lives.job.until("GOOD 22")
    lives.next()
    lives.ready()
    lives.again()
    out = lives.end(world.daemon)
    assert f"this start imports anew, and the next ones fork again: {world.site}/good.py has changed" in out
    assert out.count("forked from process") == 1


def test_a_path_file_that_is_written_in_place(world: World, tmp_path: Path) -> None:
    """The folder that it lies in keeps its time."""
    venv.create(tmp_path / "v", symlinks=True)
    site = next((tmp_path / "v/lib").glob("python*/site-packages"))
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "where.py").write_text(f"x = {value}")
    (site / "good.py").write_text("x = 1")
    (site / "my.pth").write_text(f"{tmp_path / 'a'}\n")
    lives = world.run("import good, where\nprint('WHERE', where.x, flush=True)", python=str(tmp_path / "v/bin/python"))
    lives.job.until("WHERE 1")
    lives.next()
    lives.ready()
    (site / "my.pth").write_text(f"{tmp_path / 'b'}\n")
    os.kill(lives.pid, signal.SIGKILL)
    lives.job.until("WHERE 2")
    lives.next()
    lives.end(world.daemon)


def test_forks_have_what_the_launcher_has_by_then(world: World) -> None:
    """Somebody has lowered its priority, and taken cores from it, since it was started."""
    lives = world.run("import good")
    lives.next()
    lives.ready()
    core = min(os.sched_getaffinity(0))

    def lowered() -> bool:
        """Whether all of its threads had it already: further ones have it from them."""
        had = True
        for thread in map(int, os.listdir(f"/proc/{lives.job.process.pid}/task")):
            with contextlib.suppress(ProcessLookupError):
                had = had and (os.sched_getaffinity(thread), os.getpriority(os.PRIO_PROCESS, thread)) == ({core}, 7)
                os.sched_setaffinity(thread, {core})
                os.setpriority(os.PRIO_PROCESS, thread, 7)
        return had

    while not lowered():
        pass
    life = lives.again()
    assert (life["affinity"], life["nice"]) == ([core], 7)
    assert "forked from process" in lives.end(world.daemon)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_to_fork_from_that_dies_or_is_stopped(world: World, sig: signal.Signals) -> None:
    """One start imports by itself, and another such process is made."""
    lives = world.run()
    lives.next()
    os.kill(lives.ready(), sig)
    if sig == signal.SIGKILL:
        lives.said("the process that restarts fork from has ended")
    lives.again()
    lives.ready()
    lives.again()
    out = lives.end(world.daemon)
    assert out.count("forked from process") == 1
    assert out.count("has ended (signal: killed); another one" if sig == signal.SIGKILL else "this start imports anew: process") == 1, out


def test_a_process_that_cannot_fork(world: World) -> None:
    """As where there is no memory for it."""
    world.package("good", "import errno, os, sys\ndef fork():\n    raise OSError(errno.ENOMEM, 'no memory')\nif 'replicad_preload' in sys.modules:\n    os.fork = fork")
    lives = world.run()
    lives.next()
    lives.ready()
    lives.again()
    out = lives.end(world.daemon)
    assert "forked from process" not in out
    assert re.search(r"this start imports anew: process \d+ cannot fork: .*no memory; another one is started in 5s", out)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('"$PYTHON" "$@"; exit $?', "a shell script or another launcher stands between"),
        ('exec "$PYTHON" "$@"', "the command was executed with other arguments"),
        ('exec "$PYTHON" -E "$@"', "the command was executed with other arguments"),
    ],
    ids=["a script", "a script that executes", "another interpreter"],
)
def test_programs_that_start_anew(world: World, tmp_path: Path, script: str, why: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(0o755)
    world.environment(PYTHON=sys.executable)
    lives = world.run("import sys; sys.path += [SRC, SITE]; import good".replace("SRC", repr(str(SRC))).replace("SITE", repr(str(world.site))), python=str(path))
    lives.next()
    lives.said(f"restarts import anew, since {why}")
    lives.again()
    (said,) = world.lines(lives)
    assert why in said
    assert "forked from process" not in str(lives.job.out)


def test_a_virtual_environment_is_the_programs_own(world: World, tmp_path: Path) -> None:
    """Its interpreter is the one that is forked."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    lives = world.run(python=str(tmp_path / "venv" / "bin" / "python"))
    fresh = lives.next()
    lives.ready()
    forked = lives.again()
    assert forked["executable"] == fresh["executable"]
    assert forked["executable"][1] == str(tmp_path / "venv")
    assert forked["path"] == fresh["path"]
    assert "forked from process" in lives.end(world.daemon)


def test_a_prepared_process_is_taken_over(world: World) -> None:
    """REPLICAD_PRELOAD_FD: the first life is forked too."""
    daemon = world.daemon
    name = f"t-prepared-{os.getpid()}"
    path = daemon.dir / f"{name}.py"
    path.write_text(RANK.replace("IMPORTS", "import good"))
    command = [sys.executable, str(path)]
    prepared = daemon.dir / "prepare.py"
    prepared.write_text(PREPARE)
    run = [str(daemon.program), "run", *daemon.target, "--job", name, "--world", "1", "--min-copies", "1", "--ranks", "0", "--", *command]
    process = subprocess.Popen(
        [sys.executable, str(prepared), json.dumps(run), json.dumps(command)], env=daemon.env, cwd=daemon.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    job = Job(process, name, Lines(stream(process.stdout)))
    daemon.jobs.append(job)
    lives = Lives(job, daemon.dir)
    first = lives.next()
    assert first["ppid"] == process.pid
    assert first["argv"] == command[1:]
    assert not any(e.startswith("REPLICAD_PRELOAD_FD=") for e in first["environ"])
    lives.again()
    assert lives.end(daemon).count("forked from process") == 2


#: Forks the process that restarts fork from, and becomes the launcher.
PREPARE = """
import json, os, runpy, socket, sys
from replicad._preload import replicad_preload
run, command = json.loads(sys.argv[1]), json.loads(sys.argv[2])
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork() == 0:
    ours.close()
    replicad_preload.serve(theirs, command)
    sys.argv[:] = command[1:]
    sys.path[0] = os.path.dirname(command[1])
    runpy.run_path(command[1], run_name="__main__")
    sys.exit()
theirs.close()
os.set_inheritable(ours.fileno(), True)
os.execve(run[0], run, os.environ | {"REPLICAD_PRELOAD_FD": str(ours.fileno())})
"""
