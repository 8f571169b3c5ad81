"""Serves forks of a process that has imported what a program's first life imported. It needs the standard library alone.

The launcher and this process talk over one socket (SOCK_SEQPACKET). A message is a JSON object. What the launcher sends lies in a memfd, which
is the first descriptor of a message whose text is "memfd": an environment may be larger than a message. Strings that are no text
(environment, arguments) are written with one character for each byte (Latin-1).

    process -> launcher
    {"hello": PID, "argv": [...]}                  first: who serves; and as which command, where the launcher has not started it
    {"importing": NAME}                            before each import, and again while it goes on
    {"left_out": [{"name": N, "why": W}, ...]}     these may not be imported here; the process ends, and the next one leaves them out
    {"refused": WHY}                               this program cannot be served; the process ends
    {"ready": COUNT, "packages": [...], "kib": K}  forks are served from now on
    {"forked": ID, "pid": PID}                     the answer to a request: a child of the launcher, which waits for "go"
    {"failed": ID, "why": WHY, "changed": BOOL}    the other answer; changed: files have changed, so nothing may be forked any more

    launcher -> process
    {"modules": [...], "leave_out": [...], "own": [...], "varying": [...], "prefixes": [...], "changed": {NAME: DIGEST}}   the plan
    {"fork": ID, "launcher": PID, "env": [...], "targets": [0, 1, 2, ...]}    with descriptors: memfd, "go", and one for each target

A forked process waits for one byte on "go" and ends at its end of file, having done nothing that anybody could see. So a launcher that
gives up a request closes "go", and nothing runs twice.

A process that somebody else prepared (REPLICAD_PRELOAD_FD=N in the environment of ``replicad run``: the number of the launcher's end) must be
a child of the launcher. It sends "hello" with the launcher's own command as "argv", and "ready"; there is no plan. :func:`serve` does both.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import hashlib
import importlib
import json
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

#: Most bytes of a message, of a memfd and of a name, and descriptors of a message.
MESSAGE, PAYLOAD, NAME, DESCRIPTORS = 64 << 10, 16 << 20, 200, 16
#: The pause between two words of an import that goes on, in seconds.
WORD = 1.0
#: Variables that native libraries read where no recording sees it.
NATIVE = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "LD_", "MALLOC_", "GLIBC_", "GLIBCXX_", "TBB_", "DNNL_", "ONEDNN_", "MKLDNN_", "KINETO_", "ATEN_", "NPY_",
    "CAFFE2_", "PYTORCH_", "TORCH_", "ARROW_", "JE_ARROW_",
)  # fmt: skip
#: Of those, what is read when the first process group is made.
LATE = ("TORCH_NCCL_", "TORCH_GLOO_")
#: Held to one thread while importing: OpenBLAS starts its threads when it is loaded. OpenMP starts them at its first loop, so it needs nothing.
ONE_THREAD = "OPENBLAS_NUM_THREADS"
#: Has pyarrow's jemalloc start no thread when it is loaded: it gives memory back when it is called, without one.
NO_THREAD = ("JE_ARROW_MALLOC_CONF", "background_thread:false")
#: Descriptors that may be opened during an import.
HARMLESS = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
PR_SET_PDEATHSIG, PR_SET_NAME, CAP_SYS_NICE, SCHED_NICE = 1, 15, 23, 10


def main(folder: str) -> None:
    """Of ``sitecustomize``: imports what the launcher says, then serves. It returns in forked processes alone, ready to go on as a fresh one."""
    global owner
    owner = os.getpid()
    sock = socket.socket(fileno=int(os.environ.pop("REPLICAD_PRELOAD_SERVE")))
    sock.set_inheritable(False)
    _without(folder)
    before, name = _given(), _rename(b"replicad-forks")  # for `top`: its command line is that of a rank
    _silence()
    try:
        imports, made, files = _imported(sock, before)
    except Exception as err:
        say(sock, {"refused": f"{type(err).__name__}: {err}"[:NAME]})
        os._exit(0)
    serve_forks(sock, lambda: changed(files))
    # From here on in a forked process.
    for variable, value in made.items():
        _set(variable, value)
    sys.path[:] = [p for p in sys.path if p != folder]
    sys.path_importer_cache.pop(folder, None)
    _rename(name)
    fresh_state()
    imports.seeded.again()


def _imported(sock: socket.socket, before: dict[bytes, bytes]) -> tuple[Imports, dict[bytes, bytes | None], dict[str, tuple[int, int, int] | None]]:
    """Imports, and says that forks are served: the imports, what variables they have set, and the files that are not to change. Where nothing is to be
    served, the process ends."""
    say(sock, {"hello": owner})
    plan, _ = receive(sock)
    imports = Imports(plan, sock)
    with _lower_priority():
        imports.run()
    made = _made(before)
    if why := imports.refusal(made):
        say(sock, {"refused": why})
        os._exit(0)
    if imports.offences:
        left = [{"name": n[:NAME], "why": w[:NAME]} for n, w in imports.offences.items()]
        say(sock, {"left_out": left[: MESSAGE // (3 * NAME)]})
        os._exit(0)
    files = _files()
    say(sock, {"ready": len(imports.done), "packages": packages(imports.done)[:50], "kib": resident()})
    return imports, made, files


def serve(sock: socket.socket, argv: list[str]) -> None:
    """For tests: serves forks of this process, for a launcher whose command is ``argv``. It returns in forked processes alone: they have the
    environment and the descriptors of a rank, and go on to run the program. The process itself ends with the socket."""
    global owner
    owner = os.getpid()
    say(sock, {"hello": owner, "argv": [latin(os.fsencode(a)) for a in argv]})
    say(sock, {"ready": len(sys.modules), "packages": [], "kib": resident()})
    seeded = TorchSeed()
    seeded.look()
    serve_forks(sock, lambda: "")
    fresh_state()
    seeded.again()


# -- messages ---------------------------------------------------------------------------------------------------------


def latin(data: bytes) -> str:
    """Bytes as the characters of the same numbers."""
    return data.decode("latin-1")


#: The process that serves. What a module forks when it is imported must not go on in this code.
owner = 0


def say(sock: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message. A launcher that has gone ends the process."""
    if os.getpid() != owner:
        os._exit(0)
    try:
        sock.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)
    except OSError:
        os._exit(0)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The launcher's next message, and the descriptors that came with it. At the end of the socket the process ends."""
    _, ancillary, _, _ = sock.recvmsg(MESSAGE, socket.CMSG_SPACE(4 * DESCRIPTORS), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not fds:
        os._exit(0)  # the launcher has closed it, or somebody else writes here
    size = os.fstat(fds[0]).st_size
    if not 0 < size <= PAYLOAD:
        os._exit(71)
    with mmap.mmap(fds[0], size, prot=mmap.PROT_READ) as payload:
        message = json.loads(bytes(payload))
    os.close(fds[0])
    return message, list(fds[1:])


# -- imports ----------------------------------------------------------------------------------------------------------


class Recording(os._Environ):  # type: ignore[type-arg]
    """``os.environ`` while modules are imported: says what is read by name."""

    def __getitem__(self, key: Any) -> Any:
        if told is not None and sys._getframe(1).f_code.co_name != "__iter__":  # who goes through all of them looks for some by a prefix
            told(key)
        return super().__getitem__(key)

    def setdefault(self, key: Any, value: Any = None) -> Any:  # not a read: the module sets it where nobody has
        try:
            return super().__getitem__(key)
        except KeyError:
            self[key] = value
            return super().__getitem__(key)


#: With which older torches begin.
FIXED_SEED = 67280421310721
#: Who is told of a variable that is read.
told: Callable[[Any], None] | None = None


class Imports:
    """The imports of a plan, in order, and what of them may not be done here."""

    def __init__(self, plan: dict[str, Any], sock: socket.socket) -> None:
        self.plan, self.sock = plan, sock
        self.left, self.own = set(plan["leave_out"]), set(plan["own"])
        self.varying, self.prefixes = set(plan["varying"]), tuple(plan["prefixes"])
        self.changed: dict[str, str] = plan["changed"]
        self.offences: dict[str, str] = {}  # by module
        self.reads: dict[str, list[str]] = {}  # of variables that the program sets itself, by whom
        self.done: list[str] = []
        self.entry, self.told = "", 0.0
        self.fds, self.shared = descriptors(), shared_memory()
        self.seeded = TorchSeed()

    def run(self) -> None:
        """Imports all that is not left out."""
        global told
        import random  # noqa: F401  # so that it is seen who draws

        hold()
        collects = gc.isenabled()
        gc.disable()
        sys.meta_path.insert(0, self)
        os.environ.__class__ = os.environb.__class__ = Recording
        told = self.was_read
        try:
            for name in self.plan["modules"]:
                if name not in sys.modules and not self.is_left(name):
                    self.one(name)
        finally:
            told = None
            os.environ.__class__ = os.environb.__class__ = os._Environ
            sys.meta_path.remove(self)
            gc.collect()
            freeze: Any = getattr(sys.modules.get("replicad._core.preloading"), "freeze", gc.freeze)
            freeze()
            if collects:
                gc.enable()
        self.done = [n for n in self.plan["modules"] if n in sys.modules]

    def one(self, name: str) -> None:
        """Imports one module and looks at what that has done to the process."""
        self.entry, had, drawn = name, set(sys.modules), generators()
        self.word()
        try:
            importlib.import_module(name)
        except Exception:
            pass  # the program, which knows what it needs, meets it as ever
        except BaseException as err:
            self.offends(f"ends the program when it is imported ({type(err).__name__})")
        self.seeded.look()
        now = generators()
        if what := [g for g, state in drawn.items() if now.get(g, state) != state]:
            self.offends(f"draws numbers of {what[0]} when it is imported, which the program may have seeded")
        if mine := sorted((set(sys.modules) - had) & self.own):
            self.offends(f"imports {mine[0]}, of which the program has its own")
        if why := self.harm():
            self.offends(why)

    def harm(self) -> str:
        """Why the process may not be forked after the last import; "" if it may."""
        if len(os.listdir("/proc/self/task")) > 1 and not self.offences:
            return "starts a thread when it is imported"
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if not self.offences:
                return "starts a process when it is imported"
        now = descriptors()
        new, self.fds = [now[fd] for fd in now if now[fd] != self.fds.get(fd)], now
        if new:
            return f"keeps {new[0]} open when it is imported"
        mapped, self.shared = shared_memory() - self.shared, shared_memory()
        if mapped:
            return "makes memory when it is imported that forks would share (a lock or a value of multiprocessing, an mmap)"
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized() and not self.offences:
            return "initialises the GPU when it is imported"
        return ""

    def offends(self, why: str, names: Iterable[str] = ()) -> None:
        """Has the next process leave out the module that is being imported, and others in the middle of whose import this is."""
        for name in (self.entry, *names):
            self.offences.setdefault(name, why)

    def is_left(self, name: str) -> bool:
        """Whether a module, or a package of it, is left out."""
        while name:
            if name in self.left:
                return True
            name = name.rpartition(".")[0]
        return False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Of a finder: finds nothing, and sees what is imported."""
        if time.monotonic() - self.told > WORD:
            self.word()
        if name in self.left:
            self.offends(f"imports {name}, which is left out", importing(sys._getframe(1)))
        if name in self.own:
            self.offends(f"imports {name}, of which the program has its own", importing(sys._getframe(1)))

    def word(self) -> None:
        """Says what is being imported."""
        self.told = time.monotonic()
        say(self.sock, {"importing": self.entry[:NAME]})

    def was_read(self, key: Any) -> None:
        """Takes note of a variable that was read."""
        name = os.fsdecode(key) if isinstance(key, (str, bytes)) else ""
        if name not in self.changed and name not in self.varying and not name.startswith(self.prefixes):
            return
        by = list(importing(sys._getframe(2)))
        if any(n.partition(".")[0] == "replicad" for n in by[:1]):
            return  # the package begins anew in the forked process
        if name in self.changed:
            self.reads.setdefault(name, []).extend([self.entry, *by])
        else:
            self.offends(f"reads {name} when it is imported", iter(by))

    def refusal(self, made: dict[bytes, bytes | None]) -> str:
        """Why the program cannot be served; "" if it can. A variable that the program sets counts for a module that reads it, unless an import sets it to
        the same value."""
        for name, value in self.changed.items():
            if digest(made.get(os.fsencode(name))) == value:
                continue
            if name.startswith(NATIVE) and not name.startswith(LATE):
                return f"the program sets {name} itself, which libraries read when they are loaded: set it before `replicad run`"
            for module in self.reads.get(name, ()):
                self.offences.setdefault(module, f"reads {name} when it is imported, which the program sets itself")
        if not self.offences and not self.done:
            return "nothing is left to import"
        return "" if self.offences else bad_fork()


class TorchSeed:
    """Whether torch has drawn the seed of its generator when it was imported, as newer ones do, and nothing has seeded it since."""

    def __init__(self) -> None:
        self.first: Any = None  # the generator's state when it was there

    def look(self) -> None:
        """After an import."""
        torch: Any = sys.modules.get("torch")
        if self.first is None and hasattr(torch, "get_rng_state"):
            self.first = torch.get_rng_state()

    def again(self) -> None:
        """In a forked process: draws another one."""
        torch = sys.modules.get("torch")
        if torch is not None and self.first is not None and torch.initial_seed() != FIXED_SEED and bool((torch.get_rng_state() == self.first).all()):
            torch.default_generator.seed()


def importing(frame: FrameType | None) -> Iterator[str]:
    """The modules in the middle of whose import this is, from the innermost on."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            if (name := str(frame.f_globals.get("__name__"))) == "sitecustomize":
                return  # ours; above it Python starts
            yield name
        frame = frame.f_back


def digest(value: bytes | None) -> str:
    """What a report says of a variable's value; "" of none."""
    return "" if value is None else hashlib.blake2b(value, digest_size=8).hexdigest()


def descriptors() -> dict[int, str]:
    """What is open that forked processes may not share: all but devices that hold nothing. Of a file they would share how far it was read."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target not in HARMLESS and not target.startswith(f"/proc/{os.getpid()}/fd"):
                found[int(entry)] = target
    return found


def shared_memory() -> set[str]:
    """Where memory is mapped that a forked process would write to for all others: a lock in it that a killed one held would never be free again."""
    with open("/proc/self/maps") as maps:
        return {line.partition("-")[0] for line in maps if line.split(maxsplit=2)[1].startswith("rw-s")}


def generators() -> dict[str, Any]:
    """The states of the global generators that are loaded."""
    loaded: dict[str, Any] = dict(sys.modules)
    found: dict[str, Any] = {}
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # in the middle of being imported, or another kind of generator
        if (random := loaded.get("random")) is not None:
            found["random"] = random.getstate()
        if (numpy := loaded.get("numpy.random")) is not None:
            _, words, at, *_ = numpy.get_state()
            found["numpy"] = words.tobytes(), at
        if (torch := loaded.get("torch")) is not None:
            found["torch"] = torch.get_rng_state().tolist()
    return found


def bad_fork() -> str:
    """Why torch would not use a GPU in a forked process: something has asked the driver."""
    asks = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_isInBadFork", None)
    if asks is None:
        return ""
    if (pid := os.fork()) == 0:
        os._exit(1 if asks() else 0)
    return "" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else "a module has asked for GPUs when it was imported"


def _files() -> dict[str, tuple[int, int, int] | None]:
    """Files of all modules that are not Python's own, and the folders they are installed in."""
    own = os.path.dirname(os.__file__)
    paths = {p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")}
    paths |= {os.path.join(p, name) for p in list(paths) if os.path.isdir(p) for name in os.listdir(p) if name.endswith(".pth")}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and (not file.startswith(own + os.sep) or "-packages" + os.sep in file[len(own) :]):
            paths.add(file)
    return {p: stat(p) for p in paths}


def stat(path: str) -> tuple[int, int, int] | None:
    """What tells a file from the one of before."""
    try:
        s = os.stat(path)
    except OSError:
        return None
    return s.st_mtime_ns, s.st_size, s.st_ino


def changed(files: dict[str, tuple[int, int, int] | None]) -> str:
    """A file that is not as it was; "" if there is none."""
    return next((path for path, was in files.items() if stat(path) != was), "")


def resident() -> int:
    """KiB of the process's own memory. Files that it has mapped lie in the page cache, once for all processes."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon:"))


def packages(modules: list[str]) -> list[str]:
    """Names of the packages of modules, those with the most modules first."""
    counts: dict[str, int] = {}
    for name in modules:
        top = name.partition(".")[0]
        counts[top] = counts.get(top, 0) + 1
    return sorted(counts, key=lambda name: -counts[name])


def _without(folder: str) -> None:
    """Takes our folder out of PYTHONPATH: what modules start when they are imported are processes as any others."""
    rest = os.environ["PYTHONPATH"].removeprefix(folder).removeprefix(os.pathsep)
    if rest:
        os.environ["PYTHONPATH"] = rest
    else:
        del os.environ["PYTHONPATH"]


def _rename(name: bytes) -> bytes:
    """Gives the process a name; the one that it had."""
    with open("/proc/self/comm", "rb") as f:
        had = f.read().rstrip(b"\n")
    ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
    return had


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


@contextlib.contextmanager
def _lower_priority() -> Iterator[None]:
    """Imports stand behind training, where the priority can be put back: a forked process must not keep it."""
    was = os.getpriority(os.PRIO_PROCESS, 0)
    with open("/proc/self/status") as f:
        able = next(int(line.split()[1], 16) for line in f if line.startswith("CapEff:")) >> CAP_SYS_NICE & 1
    able = able or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - was
    if not able or was >= SCHED_NICE:
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, SCHED_NICE)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, was)


def _given() -> dict[bytes, bytes]:
    """The environment that the process was given, but for what is ours. Python may have changed it before anybody could look (LC_CTYPE), and files in
    site-packages too."""
    with open("/proc/self/environ", "rb") as f:
        given = dict(entry.split(b"=", 1) for entry in f.read().split(b"\0") if b"=" in entry)
    for name in (b"REPLICAD_PRELOAD_SERVE", b"PYTHONPATH"):
        given.pop(name, None)
        if name in os.environb:
            given[name] = os.environb[name]
    return given


def _made(before: dict[bytes, bytes]) -> dict[bytes, bytes | None]:
    """Variables that imports have set, changed or (None) removed."""
    now = dict(os.environb)
    names = {n for n in before.keys() | now.keys() if before.get(n) != now.get(n)} - {ONE_THREAD.encode(), NO_THREAD[0].encode()}
    return {n: now.get(n) for n in names}


# -- forks ------------------------------------------------------------------------------------------------------------


def serve_forks(sock: socket.socket, changed: Callable[[], str]) -> None:
    """Answers requests. It returns in forked processes alone, as soon as they may go."""
    while True:
        request, fds = receive(sock)
        answer: dict[str, Any] = {"failed": request["fork"]}
        if path := changed():
            answer |= {"why": f"{path} has changed", "changed": True}
        else:
            try:
                if (pid := fork(request, fds, sock)) == 0:
                    return
                answer = {"forked": request["fork"], "pid": pid}
            except OSError as err:
                answer |= {"why": str(err), "changed": False}
        for fd in fds:
            os.close(fd)
        say(sock, answer)


def fork(request: dict[str, Any], fds: list[int], sock: socket.socket) -> int:
    """The process id of a child of the launcher; 0 in that child. The process in between ends at once, and the kernel gives what it leaves
    behind to the launcher."""
    own = os.getpid()
    r, w = os.pipe()
    try:
        if (middle := os.fork()) == 0:
            try:
                if (rank := os.fork()) == 0:
                    os.close(r)
                    os.close(w)
                    become(request, fds, sock)
                    return 0
                os.write(w, str(rank).encode())
                os._exit(0)
            except OSError as err:
                os._exit(err.errno if err.errno is not None and 0 < err.errno < 256 else 255)
            except BaseException:
                os._exit(255)
        code = os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1])
        if code:
            raise OSError(code, os.strerror(code) if 0 < code < 255 else f"the process in between ended with {code}")
        return int(os.read(r, 20))
    finally:
        if os.getpid() == own:
            os.close(r)
            os.close(w)


def become(request: dict[str, Any], fds: list[int], sock: socket.socket) -> None:
    """Waits for "go", and makes of a fork what an exec would have: descriptors, process group, environment. The rest was inherited."""
    try:
        sock.close()
        go, files = fds[0], fds[1:]
        if not os.read(go, 1):
            os._exit(0)
        os.close(go)
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != request["launcher"]:
            os._exit(0)  # it has died before it could be heard of
        with contextlib.suppress(OSError):  # a process may lower its own priority, and raise it where it is allowed to
            os.sched_setaffinity(0, os.sched_getaffinity(request["launcher"]))
            if (nice := os.getpriority(os.PRIO_PROCESS, request["launcher"])) != os.getpriority(os.PRIO_PROCESS, 0):
                os.setpriority(os.PRIO_PROCESS, 0, nice)
        above = [_above(fd, max(request["targets"]) + 1) for fd in files]
        for fd, target in zip(above, request["targets"], strict=True):
            os.dup2(fd, target, inheritable=True)
            os.close(fd)
        wanted = dict(entry.encode("latin-1").split(b"=", 1) for entry in request["env"] if "=" in entry)
        for name in [n for n in os.environb if n not in wanted]:
            _set(name, None)
        for name, value in wanted.items():
            _set(name, value)
    except BaseException:
        os._exit(72)


def _above(fd: int, least: int) -> int:
    """The descriptor, moved out of the way of the targets."""
    if fd >= least:
        return fd
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(fd)
    return moved


def _set(name: bytes, value: bytes | None) -> None:
    if value is None:
        os.environb.pop(name, None)
    elif os.environb.get(name) != value:
        os.environb[name] = value


def fresh_state() -> None:
    """What of a process must not be equal in two forks, or follows the environment. ``random`` seeds itself after a fork."""
    loaded: dict[str, Any] = dict(sys.modules)
    for renew in (_generators, _marks, _numbers_of_process, lambda _: blas_threads()):
        with contextlib.suppress(Exception):  # of a package that is not what it was: no reason to lose a rank
            renew(loaded)
    if (replicad := loaded.get("replicad")) is not None:
        replicad._begin()
    if (preloading := loaded.get("replicad._core.preloading")) is not None:
        preloading.told = True


def _generators(loaded: dict[str, Any]) -> None:
    if (numpy := loaded.get("numpy.random")) is not None:
        numpy.seed()


def _marks(loaded: dict[str, Any]) -> None:
    if (logging := loaded.get("logging")) is not None and hasattr(logging, "_startTime"):
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
    if (tempfile := loaded.get("tempfile")) is not None:
        tempfile.tempdir = None


def _numbers_of_process(loaded: dict[str, Any]) -> None:
    if (threading := loaded.get("threading")) is not None and hasattr(threading.current_thread(), "_set_native_id"):
        threading.current_thread()._set_native_id()  # Python keeps the parent's
    if (process := loaded.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)


def hold() -> None:
    """Has libraries that are loaded from now on start no thread."""
    os.environ[ONE_THREAD] = "1"
    name, said = NO_THREAD
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), said)))  # the last one counts


def blas_threads() -> None:
    """Gives each OpenBLAS that is loaded the threads that it would have started by itself."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "openblas" in line}
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            for before, after in ((b, a) for b in ("", "scipy_") for a in ("", "64_", "_64")):
                ask, put = (getattr(library, f"{before}openblas_{verb}{after}", None) for verb in ("get_num_procs", "set_num_threads"))
                if ask is not None and put is not None:
                    put(min(_blas_wants() or ask(), ask()))
                    break


def _blas_wants() -> int:
    """How many threads OpenBLAS is told to start; 0 where it is not."""
    for name in (ONE_THREAD, "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        with contextlib.suppress(ValueError):
            if (number := int(os.environ.get(name, ""))) > 0:
                return number
    return 0
