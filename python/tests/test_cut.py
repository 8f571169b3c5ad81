"""A thread that waits in a Gloo collective for a peer that is silent comes back when the connections are cut; and groups end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import environment

pytest.importorskip("torch")

PROGRAM = """
import os, signal, sys, threading, torch, torch.distributed as dist
from replicad import store

def main(rank, url):
    with store.connections():
        dist.init_process_group("gloo", init_method=url, rank=rank, world_size=2)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # silent, its sockets open
        os._exit(0)
    threading.Timer(0.3, store.cut).start()
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as err:
        print("freed:", str(err)[-200:], flush=True)
    os._exit(0)

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
"""


def test_cut_frees_a_blocked_thread(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    env = environment()
    peer = subprocess.Popen([*command, "1", f"file://{tmp_path}/store"], env=env)
    try:
        out = subprocess.run([*command, "0", f"file://{tmp_path}/store"], env=env, stdout=subprocess.PIPE, text=True, timeout=300).stdout
    finally:
        peer.kill()
        peer.wait()
    assert "freed:" in out


LOOK = """
import ctypes, os, socket, threading, time
from replicad import store

class Stop(BaseException): ...

listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
both = socket.create_connection(listeners[0].getsockname()), listeners[0].accept()[0]
other = socket.socketpair(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
assert {fd for fd, _ in store._tcp()} == {s.fileno() for s in (*listeners, *both)}
before, stopped, looks = os.listdir("/proc/self/fd"), 0, []  # no lock: one that is broken off as it is taken stays taken

def look():
    global stopped
    while stopped < 300:
        try:
            while True:
                looks.append(1)
                store._tcp()
        except Stop:
            stopped += 1

thread = threading.Thread(target=look)
thread.start()
seen = 0
while thread.is_alive():
    for _ in range(100):
        if len(looks) > seen:
            break
        time.sleep(0.001)
    seen = len(looks)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
assert stopped > 0 and os.listdir("/proc/self/fd") == before, (stopped, before, os.listdir("/proc/self/fd"))
print("KEPT NOTHING")
"""


def test_a_look_at_the_connections_that_is_broken_off_keeps_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment(), capture_output=True, text=True, timeout=300)
    assert "KEPT NOTHING" in done.stdout, done.stdout + done.stderr


ENDS = """
import os, time, torch, torch.distributed as dist
from replicad.store import destroy_process_group

def held():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

store, looks = dist.HashStore(), []
for i in range(500):
    dist.init_process_group("gloo", store=dist.PrefixStore(str(i), store), rank=0, world_size=1)
    tensors = [torch.zeros(64) for _ in range(4)]
    works = [dist.broadcast(t, 0, async_op=True) for t in tensors]
    for work in works:
        work.wait()
    del tensors, works, work
    destroy_process_group()
    if 5 <= i < 25:
        looks.append(held())
# The kernel has a thread for a moment after it was joined: the least of some looks has none of these, and the last look waits for them.
before, end = tuple(map(min, zip(*looks))), time.monotonic() + 60
while held() != before and time.monotonic() < end:
    time.sleep(0.005)
assert held() == before, (before, held())
"""


def test_groups_end_right_behind_an_operation() -> None:
    """Torch 2.6 hung in its own ``destroy_process_group`` before it had done so 500 times."""
    subprocess.run([sys.executable, "-c", ENDS], env=environment(), check=True, timeout=300)
