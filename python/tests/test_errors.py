"""Errors: each a type of its own, with the value and the remedy in the text."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import replicad
from conftest import PATIENCE, ROOT, Daemon, environment
from replicad import Fenced, Fork, Gone, Invalid, Rank, Region, SessionState, Stopped, Version
from replicad._core import native as _native
from replicad.errors import BY_CODE, Error, Signal

MEMORY = (ctypes.c_uint8 * 64)()
PLACE = ctypes.addressof(MEMORY)

GOOD = """
import ctypes, os, sys
from replicad import Fenced, Rank, Region, Stopped
memory = (ctypes.c_uint8 * 64)()
rank = Rank.open()
rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
rank.attach()
while (order := rank.join()).initialise:
    rank.seal_initial()
rank.load(); rank.ready()
"""


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for k in list(os.environ):
        if k.startswith("REPLICAD_"):
            monkeypatch.delenv(k)


def test_codes_agree_with_the_header() -> None:
    text = (ROOT / "libreplicad" / "include" / "replicad.h").read_text()
    codes = {int(v) for v in re.findall(r"\bRP_E[A-Z]+ = (-\d+)", text)}
    assert codes == set(BY_CODE)
    assert f"#define RP_ABI_VERSION {_native.ABI}u" in text
    exported = set((ROOT / "libreplicad" / "tests" / "abi.txt").read_text().split())
    for name in exported:
        assert getattr(_native.library(), name).argtypes is not None or name == "rp_abi_version", f"{name} is not declared"


def test_every_error_can_be_caught_by_the_packages_name() -> None:
    assert set(replicad.errors.__all__) <= set(replicad.__all__)


def test_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match=r"REPLICAD_RANK is not set: start this program with `replicad run`"):
        Rank.open()
    monkeypatch.setenv("REPLICAD_RANK", "zero")
    with pytest.raises(Invalid, match="REPLICAD_RANK='zero'"):
        Rank.open()
    for name in ("RANK", "WORLD", "GROUP"):
        monkeypatch.setenv(f"REPLICAD_{name}", "1")
    with pytest.raises(Invalid, match="no daemon is named: start this program with `replicad run`"):
        Rank.open()


def test_no_daemon(tmp_path: Path) -> None:
    path = str(tmp_path / "none.sock")
    with pytest.raises(Gone) as err:
        Rank.open(socket=path, job="x", rank=0, world=1, group=0, timeout=0)
    assert path in str(err.value)
    assert "start the daemon of this node" in str(err.value)
    assert err.value.code == -5


@pytest.fixture(scope="module")
def job(daemon: Daemon) -> str:
    """A job whose ranks wait to be told something."""
    j = daemon.run("import signal; print('WAITS', flush=True); signal.pause()")
    j.until("WAITS")
    return j.name


@pytest.mark.parametrize(
    ("region", "text"),
    [
        (Region("x", PLACE, 64, dtype="float33"), "unknown dtype 'float33': want one of uint8"),
        (Region("x" * 128, PLACE, 64), "1 to 127 bytes"),
        (Region("ä" * 64, PLACE, 64), "1 to 127 bytes"),
        (Region("", PLACE, 64), "1 to 127 bytes"),
        (Region("a\0b", PLACE, 64, shape=(64,)), "none of them zero"),
        (Region("a\udcff", PLACE, 64, shape=(64,)), r"region 'a\udcff': its name is not UTF-8"),
        (Region("__metadata__", PLACE, 64, shape=(64,)), "called __metadata__: safetensors files have a key of that name"),
        (Region("x", PLACE, 64, changes="sometimes"), "changes='sometimes': want one of window, any, never"),
        (Region("x", PLACE, 64, shape=(63,)), "x"),
        (Region("x", PLACE, 65, dtype="int16", shape=(32,)), "x"),
        (Region("x", 0, 64, shape=(64,)), "x"),
    ],
)
def test_bad_region(daemon: Daemon, job: str, region: Region, text: str) -> None:
    with Rank.open(socket=str(daemon.socket), job=job, rank=0, world=1, group=0) as rank:
        with pytest.raises(Invalid) as err:
            rank.register([region])
        assert text in str(err.value)


def test_names_are_unique(daemon: Daemon, job: str) -> None:
    with Rank.open(socket=str(daemon.socket), job=job, rank=0, world=1, group=0) as rank, pytest.raises(Invalid, match="same"):
        rank.register([Region("same", PLACE, 32, shape=(32,)), Region("same", PLACE + 32, 32, shape=(32,))])


def test_no_such_job(daemon: Daemon) -> None:
    with pytest.raises(replicad.Refused, match='no job "nobody-runs-this": start it with `replicad run --job nobody-runs-this'):
        Rank.open(socket=str(daemon.socket), job="nobody-runs-this", rank=0, world=1, group=0)


def test_closed(daemon: Daemon, job: str) -> None:
    rank = Rank.open(socket=str(daemon.socket), job=job, rank=0, world=1, group=0)
    rank.close()
    rank.close()
    for call in (lambda: rank.register([]), rank.load, rank.leave, lambda: rank.kv_get("k"), lambda: rank.committed, rank.stats):
        with pytest.raises(SessionState, match="closed"):
            call()
    assert not rank.fenced


def test_calls_out_of_order(run: Callable[..., str]) -> None:
    out = run(
        """
        import ctypes
        from replicad import Rank, Region, SessionState
        memory = (ctypes.c_uint8 * 64)()

        def refused(what, call, *a, **k):
            try:
                call(*a, **k)
            except SessionState as err:
                print("REFUSED", what, err)
            else:
                raise SystemExit(f"{what} was accepted")

        rank = Rank.open()
        refused("join before attach", rank.join)
        rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
        rank.attach()
        refused("load before join", rank.load)
        refused("step before join", rank.step_enter, 1)
        while (order := rank.join()).initialise:
            refused("load instead of seal", rank.load)
            rank.seal_initial()
        refused("step before load", rank.step_enter, 1)
        rank.load(); rank.ready()
        refused("exit before enter", rank.step_exit, 1)
        rank.step_enter(1)
        refused("a step in a step", rank.step_enter, 2)
        rank.step_exit(1)
        rank.leave()
        rank.close()
        """
    )
    assert out.count("REFUSED") == 7


@pytest.mark.parametrize("kind", [Fenced, Stopped])
def test_signals_pass_through_broad_handlers(kind: type[Signal]) -> None:
    assert not issubclass(kind, Exception)
    assert not issubclass(kind, Error)
    with pytest.raises(kind):
        try:
            raise kind("the epoch is closed")
        except Exception:  # what many training loops have
            pytest.fail("swallowed")


def test_fence_passes_through(run: Callable[..., str], daemon: Daemon) -> None:
    out = daemon.run(
        GOOD
        + """
if order.rank == 0:
    rank.barrier("both", 2)  # a rank that is not ready yet would meet the fence there
    try:
        rank.fail("on purpose")
        try:
            while True:
                rank.barrier("never full", 3)
        except Exception as err:
            print("SWALLOWED", repr(err), flush=True)
    except Fenced as err:
        print("FENCED", err, flush=True)
else:
    try:
        try:
            rank.barrier("both", 2)
            rank.barrier("never full", 3)
        except Exception as err:
            print("SWALLOWED", repr(err), flush=True)
    except Fenced as err:
        print("FENCED", err, flush=True)
while True:
    try:
        rank.join(); rank.load(); rank.ready(); rank.leave()
        break
    except Fenced:
        pass
""",
        world=2,
    ).done()
    assert out.count("FENCED") == 2
    assert "SWALLOWED" not in out


def test_job_end_stops(daemon: Daemon) -> None:
    job = daemon.run(
        GOOD
        + """
import signal
signal.signal(signal.SIGTERM, lambda *_: None)  # the launcher's word; here the daemon's is wanted
print("READY", flush=True)
try:
    while True:
        try:
            rank.kv_get("nobody sets this")
        except Exception as err:
            print("SWALLOWED", repr(err), flush=True)
except Fenced as err:
    try:
        rank.join()
    except Stopped as err:
        print("STOPPED", err, flush=True)
except Stopped as err:
    print("STOPPED", err, flush=True)
"""
    )
    job.until("READY")
    daemon.verb("job", "end", job.name, "--dev")
    job.until("STOPPED")
    assert job.wait() == 1


FORK = """
import multiprocessing, os, sys, traceback

import replicad

rank = None


def child(where, out):
    # With spawn and forkserver there is no parent's session; with fork there is, and it refuses.
    code = "no session"
    if rank is not None:
        calls = [rank.join, rank.load, rank.leave, lambda: rank.step_enter(1), lambda: rank.kv_set("k", b""), lambda: rank.barrier("b", 1), lambda: rank.committed,
                 rank.stats, lambda: rank.set_good(1), rank.freeze_good, lambda: rank.fail("x"), lambda: rank.register([]), lambda: rank.on_fence(print)]
        for call in calls[:-1]:
            try:
                call()
                code = "a call was accepted"
                break
            except replicad.Fork as err:
                assert str(os.getppid()) in str(err) and str(os.getpid()) in str(err), err
                code = "Fork"
        assert rank.fenced is False
        rank.close()
    out.put(code)


def main():
    global rank
    import ctypes
    from replicad import Rank, Region

    method = sys.argv[1]
    memory = (ctypes.c_uint8 * 64)()
    with Rank.open() as rank:
        rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
        rank.attach()
        while (order := rank.join()).initialise:
            rank.seal_initial()
        rank.load(); rank.ready()
        context = multiprocessing.get_context(method)
        for step in range(1, 4):  # between steps, whose threads are busy
            rank.step_enter(step)
            rank.step_exit(step)
            out = context.SimpleQueue()
            p = context.Process(target=child, args=(step, out))
            p.start()
            got = out.get()
            p.join()
            print("CHILD", got, p.exitcode, flush=True)
        rank.leave()


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_fork(run: Callable[..., str], method: str) -> None:
    out = run(FORK, method)
    assert out.count(f"CHILD {'Fork' if method == 'fork' else 'no session'} 0") == 3, out


def test_fork_is_typed() -> None:
    assert issubclass(Fork, Error)
    assert Fork.code == -6


def in_python(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], env=environment(**env), capture_output=True, text=True, timeout=PATIENCE)


OPEN = "import replicad\ntry:\n    replicad.Rank.open(socket='/none', job='x', rank=0, world=1, group=0, timeout=0)\nexcept replicad.Version as err:\n    print('VERSION', err)\n"


def test_library_of_another_version(tmp_path: Path) -> None:
    source, library = tmp_path / "fake.c", tmp_path / "fake.so"
    source.write_text("unsigned rp_abi_version(void) { return 99; }\n")
    gcc = shutil.which("gcc") or pytest.skip("no gcc to make a library with")
    subprocess.run([gcc, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    got = in_python(OPEN, REPLICAD_LIBRARY=str(library))
    assert f"VERSION {library} has ABI 99, this package needs {_native.ABI}: install the wheel whole" in got.stdout, got


def test_no_library(tmp_path: Path) -> None:
    got = in_python(OPEN, REPLICAD_LIBRARY=str(tmp_path / "none.so"))
    assert "VERSION no C library found" in got.stdout, got
    assert "none.so is not there): install the replicad wheel" in got.stdout
    (tmp_path / "text.so").write_text("no library")
    got = in_python(OPEN, REPLICAD_LIBRARY=str(tmp_path / "text.so"))
    assert "text.so: " in got.stdout, got


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A daemon that answers every hello with the same bytes, at once or later."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        path = str(tmp_path / "s")
        s.bind(path)
        s.listen()
        threads: list[threading.Thread] = []

        def serve(reply: bytes, after: float) -> None:
            with contextlib.suppress(OSError):
                while True:
                    conn, _ = s.accept()
                    with conn, contextlib.suppress(OSError):  # who did not wait for the answer comes again
                        hello = conn.recv(1 << 16)
                        time.sleep(after)
                        conn.send(reply[:12] + hello[12:16] + reply[16:])  # the answer names the request
                        conn.recv(1)

        def start(reply: bytes, after: float = 0.0) -> str:
            threads.append(threading.Thread(target=serve, args=(reply, after), daemon=True))
            threads[0].start()
            return path

        yield start
        s.shutdown(socket.SHUT_RDWR)
        for t in threads:
            t.join()


def golden(name: str) -> bytes:
    return (ROOT / "libreplicad" / "testdata" / f"{name}.bin").read_bytes()


def message(name: str, body: bytes) -> bytes:
    """A golden message with another body."""
    head = golden(name)[:32]
    return head[:8] + struct.pack("<I", 32 + len(body)) + head[12:] + body


def test_daemon_of_another_version(answering: Callable[..., str]) -> None:
    """What a daemon says to a library of another version; and a welcome that this library doesn't know."""
    path = answering(message("refused", struct.pack("<iI", -7, 0) + b"library version 1, this daemon speaks 2: use the libreplicad that came with it"))
    with pytest.raises(Version, match="this daemon speaks 2: use the libreplicad that came with it"):
        Rank.open(socket=path, job="x", rank=0, world=1, group=0, timeout=PATIENCE)


def test_a_daemon_that_is_slow_to_answer_is_waited_for(answering: Callable[..., str]) -> None:
    """A call waits a tenth of a second before signals are looked at, and the next one connected anew: a busy daemon never answered in time."""
    path = answering(message("refused", struct.pack("<iI", -7, 0) + b"at last"), 0.3)
    with pytest.raises(Version, match="at last"):
        Rank.open(socket=path, job="x", rank=0, world=1, group=0, timeout=10)


def test_welcome_of_another_version(answering: Callable[..., str]) -> None:
    path = answering(message("welcome", golden("welcome")[32:] + bytes(8)))
    with pytest.raises(Version, match="the daemon's welcome has 56 bytes, want 48"):
        Rank.open(socket=path, job="x", rank=0, world=1, group=0, timeout=PATIENCE)


def test_this_daemon_refuses_another_library(daemon: Daemon, job: str) -> None:
    """The real daemon's word to a hello of another version."""
    hello = bytearray(golden("hello"))
    struct.pack_into("<I", hello, 32, 99)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(str(daemon.socket))
        s.send(hello)
        reply = s.recv(1 << 16)
    assert struct.unpack_from("<i", reply, 32)[0] == Version.code
    assert b"library version 99, this daemon speaks 1" in reply


def test_remedies_are_named_as_python_has_them() -> None:
    text = _native.ErrorText()
    text.text = b"epoch 1 is closed: rp_join, or rp_scope for the one to come"
    err = _native.failure("leave", _native.EFENCED, text)
    assert isinstance(err, Fenced) and str(err) == "leave: epoch 1 is closed: call session.resume(), or rank.scope() for the one to come"
    text.text = b"rp_leave: the daemon is gone from /x: rp_reconnect, then call again"
    assert str(_native.failure("leave", _native.EGONE, text)) == "leave: the daemon is gone from /x: the session reconnects by itself, then call again"


def test_no_error_names_what_is_in_the_c_library_alone() -> None:
    written = "".join(f.read_text() for f in sorted((ROOT / "libreplicad" / "src").glob("*.c")))
    texts = [t for t in re.findall(r'"([^"\n]*)"', written) if re.search(r"\b(rp_[a-z]|RP_[A-Z])", t)]
    assert len(texts) > 20
    for text in texts:
        told = _native.ErrorText()
        told.text = text.encode()
        err = str(_native.failure("register", -12, told))
        assert not re.search(r"\b(rp_|RP_)", err), err
        for call in re.findall(r"\brank\.(\w+)\(\)", err):
            assert hasattr(Rank, call), err


def test_without_torch() -> None:
    """What needs it says so; the rest of the package works."""
    program = (
        "import sys; sys.modules['torch'] = None\nimport replicad, replicad.inprocess, replicad.testing\nreplicad.Rank\n"
        "for name in ('Session', 'data'):\n    try:\n        getattr(replicad, name)\n    except ImportError as err:\n        print(name, err)\n"
    )
    got = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert got.stdout.count("is for PyTorch, which is not installed: pip install 'torch>=2.6'; replicad.Rank works without it") == 2, got
