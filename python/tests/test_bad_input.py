"""What a session refuses, each time with a type, the value and the remedy, and with nothing half done: on real daemons and processes."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import replicad
from conftest import PATIENCE, ROOT, Daemon, environment
from replicad import Gone, Rank, SessionState, Unsupported

#: Sessions over models that the generation is not of, then over the right one, all in one process; the first process ends with a model
#: whose tensors have the same shapes in another layout, which only the loaded bytes can tell.
OTHERS = """
import os, sys
import torch, replicad
from torch import nn
from replicad.store import init_process_group


def build(kind):
    torch.manual_seed(1)
    m = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    if kind == "shape": m = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 4))
    if kind == "dtype": m = m.double()
    if kind == "extra": m.append(nn.Linear(4, 4))
    if kind == "missing": del m[1]
    if kind == "frozen": m[0].requires_grad_(False)
    if kind == "ddp": m = nn.Sequential(); m.add_module("module", build("right"))
    return m


def opened(kind, connection=None, data=()):
    model = build(kind)
    if kind == "fsdp2":
        connection = replicad.connect()
        init_process_group(connection)
        from torch.distributed.fsdp import fully_shard
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters() if kind != "missing" else model[0].parameters())
    return model, optimizer, replicad.Session(model=model, optimizer=optimizer, connection=connection, data=data)


class Data:
    def __init__(self, n): self.words = list(range(n))
    def state_dict(self): return {"words": self.words}
    def load_state_dict(self, s): self.words = s["words"]


torch.set_num_threads(1)
first = not os.path.exists(sys.argv[1])
for kind in (sys.argv[2].split(",") if first else ["ddp"]):
    model, optimizer, session = opened(kind.removesuffix("-data"), data=Data(5000) if kind.endswith("-data") else ())
    before = [p.detach().clone() for p in model.parameters()] if kind != "fsdp2" else []
    try:
        at = session.resume()
    except replicad.Mismatch as err:
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters())), f"{kind}: something was loaded"
        os.write(1, f"MISMATCH {kind} {err}\\n".encode())
        session.close()
        continue
    print("RESUMED", kind, int(at), at.source, float(sum(p.detach().sum() for p in model.parameters())), flush=True)
    for step in range(at + 1, at + 1 + int(sys.argv[3])):
        model(torch.ones(2, 4)).sum().backward()
        with session.step():
            optimizer.step()
        session.commit()
    print("WEIGHTS", float(sum(p.detach().sum() for p in model.parameters())), flush=True)
    while len(sys.argv) > 4 and not os.path.exists(sys.argv[4]):
        session.rank.wait_fence(0.02)
    session.leave()
    session.close()
    raise SystemExit(0)
open(sys.argv[1], "w").close()
raise SystemExit(3)
"""


def test_a_durable_generation_of_another_model(daemon: Daemon, tmp_path: Path) -> None:
    """Any difference is said by name, before the rank is claimed where the regions tell it; what was refused leaves nothing behind, and the
    right model goes on: wrapped by DDP too, which changes names and nothing else."""
    name = f"other-{os.getpid()}"
    job = daemon.run(OTHERS, str(tmp_path / "none"), "right", "4", str(tmp_path / "written"), name=name, flags=("--durable-every", "2"))
    total = job.until("WEIGHTS").split()[1]
    end = time.monotonic() + PATIENCE
    while not re.search(r"^durable +\(1,4\)", daemon.verb("status", "--dev"), re.M):
        assert time.monotonic() < end, "the last generation is not written"
    (tmp_path / "written").touch()
    job.done()
    world = daemon.run(OTHERS, str(tmp_path / "none"), "right", "1", world=2, name=name, flags=("--resume", "--groups", "0,1"))
    assert world.wait() != 0
    assert "has 1 ranks in groups [0], not 2 in [0 1]: start it with that layout, or without --resume" in str(world.out)
    kinds = ["shape", "dtype", "extra", "missing", "frozen", "right-data", "fsdp2"]
    out = daemon.run(OTHERS, str(tmp_path / "again"), ",".join(kinds), "1", name=name, flags=("--resume",)).done()
    said = dict(re.findall(r"^MISMATCH (\S+) (.*)$", out, re.M))
    assert list(said) == kinds, out
    assert '"model.0.weight" has shape [16 4], had [8 4]' in said["shape"]
    assert '"model.0.weight" is F64, was F32' in said["dtype"]
    assert '"model.2.weight" is extra' in said["extra"]
    assert '"model.1.weight" is missing' in said["missing"]
    assert '"model.0.weight" changes at another time' in said["frozen"]
    assert 'than its own state has: "replicad.own" has shape' in said["right-data"]
    assert said["fsdp2"].startswith("the generation has another layout: ")
    assert "model.0.weight is (8, 4) at (0, 0) of (8, 4), shard(0) over a mesh of 1, was not sharded" in said["fsdp2"]
    for kind in kinds[:-1]:
        assert f"(replicad job end {name})" in said[kind]
        assert "without --resume" in said[kind]
    assert [m for m in re.findall(r"^RESUMED ddp 4 (\S+) (.*)$", out, re.M) if m[1] == total], (total, out)


def test_ranks_with_different_models(daemon: Daemon) -> None:
    job = daemon.run(
        """
        import os, signal, torch, replicad
        number = int(os.environ["REPLICAD_RANK"])
        model = torch.nn.Linear(2, 2 + number)
        try:
            session = replicad.Session(model=model)
            session.resume()
        except replicad.Mismatch as err:
            os.write(1, f"MISMATCH {err}\\n".encode())
            signal.pause()  # until the test ends the job, which would end by itself where each process of the rank did
        """,
        world=2,
    )
    text = job.until("MISMATCH")
    assert re.search(
        r"group 0 has [0-9a-f]{32}: register the same regions in the same order on all ranks of a group; beside rank \d: \"model.weight\" has shape \[\d 2\], had \[\d 2\]", text
    ), text
    daemon.verb("job", "end", job.name, "--dev")
    job.wait()


def test_steps_that_are_never_left(daemon: Daemon) -> None:
    """A generator that holds the block keeps the step open after the loop over it was left. Nothing that would take the step for done is
    let through, and the job goes on once it was closed."""
    out = daemon.run(
        """
        import gc, torch, replicad

        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def refused(kind, text, call):
            try:
                call()
            except kind as err:
                assert text in str(err), err
                print("REFUSED", text, flush=True)
            else:
                raise SystemExit(f"not refused: {text}")

        def step():
            with session.step():
                pass

        def batches():
            with session.step():
                for i in range(3):
                    yield i

        session = replicad.Session(model=model, optimizer=optimizer)
        session.resume()
        step()
        held = batches()
        for i in held:
            break
        inside = f"inside of step {session.at + 1}"
        refused(replicad.SessionState, f"a step {inside}", step)
        refused(replicad.SessionState, f"leave {inside}", session.leave)
        refused(replicad.SessionState, f"resume {inside}", session.resume)
        refused(replicad.SessionState, f"rebind {inside}", lambda: session.rebind(scheduler=()))
        held.close()
        # What is torn stays refused, for handlers of Exception too, until the rank goes back.
        for _ in range(3):
            refused(replicad.Fenced, "step 2 was broken off inside of the optimizer step", step)
            refused(replicad.Fenced, "step 2 was broken off inside of the optimizer step", session.leave)
        assert session.resume() == 1
        step()
        assert session.at == 2
        # The block of a restarted run leaves its steps behind: what they do later is not the new epoch's.
        held = batches()
        next(held)
        session.rest()
        at = session.resume()
        held.close()
        step()
        assert session.at == at + 1 and not session.rank.fenced
        session.leave()
        held = batches()
        session.close()
        refused(replicad.SessionState, "the session is closed", step)
        print("DONE", flush=True)
        """
    ).done()
    assert out.count("REFUSED") == 11, out
    assert "DONE" in out


def test_broad_handlers_do_not_swallow_a_fence(daemon: Daemon) -> None:
    """`except Exception` lets it through; `except BaseException` that goes on gets it again with every call, until resume."""
    out = daemon.run(
        """
        import torch, replicad

        model = torch.nn.Linear(2, 2)
        session = replicad.Session(model=model)
        session.resume()

        def step():
            with session.step():
                pass

        def pause():
            with session.pause(1):
                pass

        step()
        session.rank.fail("on purpose")
        session.rank.wait_fence()
        fences = 0
        for _ in range(2):
            for call in (step, session.leave, pause, lambda: session.rank.barrier("b", 1)):
                try:
                    try:
                        call()
                    except Exception as err:
                        raise SystemExit(f"swallowed: {err!r}")
                except BaseException as err:
                    assert isinstance(err, replicad.Fenced), repr(err)
                    fences += 1
                    continue
        assert fences == 8 and session.at == 1
        session.resume()
        step()
        session.leave()
        for call in (step, session.resume):  # the job has ended, and says so every time
            for _ in range(2):
                try:
                    call()
                except BaseException as err:
                    print("AFTER", type(err).__name__, flush=True)
        session.close()
        """
    ).done()
    after = re.findall(r"^AFTER (\w+)$", out, re.M)
    assert len(after) == 4, out
    assert after == ["SessionState", "SessionState", "Stopped", "Stopped"]


def test_a_session_in_a_child(daemon: Daemon) -> None:
    out = daemon.run(
        """
        import os, torch, replicad

        session = replicad.Session(model=torch.nn.Linear(2, 2))
        session.resume()

        def step():
            with session.step():
                pass

        step()
        child = os.fork()
        if child == 0:
            calls = [step, session.resume, session.rest, session.leave, session.stats, session.explain, lambda: session.rebind(scheduler=()), lambda: session.committed,
                     lambda: session.pause(1).__enter__()]
            refused = 0
            for call in calls:
                try:
                    call()
                except replicad.Fork as err:
                    assert "must not use it" in str(err)
                    refused += 1
            session.close()
            os._exit(0 if refused == len(calls) else 1)
        assert os.waitpid(child, 0)[1] == 0
        step()
        assert session.at == 2
        session.leave(); session.close()
        """
    ).done()
    assert "resumes" not in out


# -- in this process -----------------------------------------------------------------------------------------------------


def hooks(model: nn.Module) -> int:
    return len(model._forward_pre_hooks)


def test_no_daemon_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in list(os.environ):
        if k.startswith("REPLICAD_"):
            monkeypatch.delenv(k)
    monkeypatch.setenv("REPLICAD_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.setenv("REPLICAD_JOB", "x")
    for name, value in (("RANK", "0"), ("WORLD", "1"), ("GROUP", "0")):
        monkeypatch.setenv(f"REPLICAD_{name}", value)
    monkeypatch.setattr(Rank, "open", functools.partial(Rank.open, timeout=0))
    model = nn.Linear(2, 2)
    for _ in range(2):  # the first attempt is no session that would be in the way
        with pytest.raises(Gone, match="start the daemon of this node"):
            replicad.Session(model=model)
        assert hooks(model) == 0


class Odd:
    def state_dict(self) -> dict[str, Any]:
        return {"seen": [1, {"names": {"a", "b"}}]}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"model": "abc"}, r"model: want a torch.nn.Module, or a list or dict of them, not str"),
        ({"optimizer": [1, 2]}, r"optim.0: want a torch.optim.Optimizer, or a list or dict of them, not int"),
        ({"extra": Odd()}, r"extra: want a dict of objects by name, not test_bad_input.Odd: extra=\{'name': object\}"),
    ],
)
def test_objects_of_another_kind(what: dict[str, Any], says: str) -> None:
    with pytest.raises(replicad.Invalid, match=says):
        replicad.Session(**({"model": nn.Linear(2, 2), "enabled": True} | what))


@pytest.mark.parametrize(
    ("what", "path"),
    [
        ({"extra": {"odd": Odd()}}, r"replicad\.own\.objects\.odd\.seen\[1\]\.names: builtins\.set"),
        ({"data": Odd()}, r"replicad\.own\.data\.data\.seen\[1\]\.names: builtins\.set"),
    ],
    ids=["extra", "data"],
)
def test_state_that_needs_pickle(what: dict[str, Any], path: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(Unsupported, match=rf"{path} can't be kept without pickle: make it a list"):
        replicad.Session(model=model, enabled=True, **what)
    assert hooks(model) == 0


def descriptors() -> int:
    """How many this process has, but pipes: those of other tests' jobs are closed by threads, at any time."""
    links = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the folder itself
            links += not os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")
    return links


@pytest.mark.parametrize("part", ["_torch.kept.Layout", "session.scalars_in_place"])
def test_a_session_that_fails_when_it_is_made_closes_its_connection(part: str, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    job = daemon.run("import signal; print('WAITS', flush=True); signal.pause()")
    job.until("WAITS")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    before = descriptors()
    monkeypatch.setenv("REPLICAD_SOCKET", str(daemon.socket))
    monkeypatch.setenv("REPLICAD_JOB", job.name)
    for name, value in (("RANK", "0"), ("WORLD", "1"), ("GROUP", "0")):
        monkeypatch.setenv(f"REPLICAD_{name}", value)
    monkeypatch.setattr(f"replicad.{part}", lambda *_: (_ for _ in ()).throw(SessionState("on purpose")))
    with pytest.raises(SessionState, match="on purpose"):
        replicad.Session(model=model, optimizer=optimizer)
    assert descriptors() == before
    assert hooks(model) == 0
    daemon.verb("job", "end", job.name, "--dev")


def test_a_library_that_lacks_a_function(tmp_path: Path) -> None:
    """One of the same ABI from before a function came."""
    import shutil

    source, library = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text("unsigned rp_abi_version(void) { return 1; }\n")
    gcc = shutil.which("gcc") or pytest.skip("no gcc to make a library with")
    subprocess.run([gcc, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    program = (
        "import replicad\ntry:\n    replicad.Rank.open(socket='/none', job='x', rank=0, world=1, group=0, timeout=0)\nexcept replicad.Version as err:\n    print('VERSION', err)\n"
    )
    got = subprocess.run([sys.executable, "-c", program], env=environment(REPLICAD_LIBRARY=str(library)), capture_output=True, text=True, timeout=PATIENCE)
    assert re.search(r"VERSION \S+old\.so is of another release \(.*undefined symbol: rp_open\): install the wheel whole", got.stdout), got


def test_a_daemon_of_another_release_comes_back(own_daemon: Daemon) -> None:
    """A rank whose daemon was replaced by one that speaks another version trains on, and says that nobody keeps its steps; with the right
    one back it is kept again."""
    job = own_daemon.run(
        """
        import ctypes
        from replicad import Rank, Region
        memory = (ctypes.c_uint8 * 64)()
        with Rank.open() as rank:
            rank.register([Region("m", ctypes.addressof(memory), 64, shape=(64,))])
            rank.attach()
            while rank.join().initialise:
                rank.seal_initial()
            rank.load(); rank.ready()
            print("STEPPING", flush=True)
            step, back = 0, None
            while back is None or rank.committed < back:
                step += 1
                if back is None and rank.stats().reconnects:
                    back = step
                rank.step_enter(step)
                rank.step_exit(step)
                rank.wait_fence(0.001)
            print("KEPT", flush=True)
            rank.leave()
        """
    )
    job.until("STEPPING")
    assert own_daemon.process is not None
    own_daemon.process.kill()
    own_daemon.log.rest()
    own_daemon.process.wait()
    own_daemon.socket.unlink(missing_ok=True)
    golden = (ROOT / "libreplicad" / "testdata" / "refused.bin").read_bytes()[:32]
    body = struct.pack("<iI", replicad.Version.code, 0) + b"library version 1, this daemon speaks 2"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(own_daemon.socket))
        s.listen()

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:  # the launcher and the rank, whichever comes first
                    conn, _ = s.accept()
                    with conn:
                        hello = conn.recv(1 << 16)
                        conn.send(golden[:8] + struct.pack("<I", 32 + len(body)) + hello[12:16] + golden[16:32] + body)

        other = threading.Thread(target=refuse, daemon=True)
        other.start()
        said = job.until("this daemon speaks 2") + job.until("this daemon speaks 2")
        s.shutdown(socket.SHUT_RDWR)
        other.join()
    assert "does not take rank 0 back, whose steps nobody keeps meanwhile" in said
    assert "1 process(es) go on" in said
    own_daemon.socket.unlink()
    own_daemon.start()
    job.until("KEPT")
    job.done()
