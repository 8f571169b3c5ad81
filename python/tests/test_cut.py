"""A thread that waits in a Gloo collective for a peer that is silent comes back when the connections are cut."""

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
        out = subprocess.run([*command, "0", f"file://{tmp_path}/store"], env=env, stdout=subprocess.PIPE, text=True, timeout=120).stdout
    finally:
        peer.kill()
        peer.wait()
    assert "freed:" in out
