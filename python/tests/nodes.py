"""Several daemons on loopback addresses of their own, which are the nodes of one cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from conftest import PATIENCE, ROOT, Daemon, environment


class Node(Daemon):
    """One of them, all of them voters."""

    def __init__(self, folder: Path, name: str, names: str, more: dict[str, Any]) -> None:
        self.name, self.dir, self.program, self.env = name, folder / name, ROOT / "bin" / "replicad", environment()
        self.dir.mkdir()
        self.keeper, self.jobs = 0, []
        self.silence: list[socket.socket] = []  # of a node that was lost
        pid = os.getpid()  # no other process has it: neither its addresses
        addresses = {n: f"127.{64 + (pid >> 14 & 63)}.{pid >> 6 & 255}.{4 * (pid & 63) + i}" for i, n in enumerate(names, 1)}
        self.address = addresses[name]
        pki = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}-key.pem", "gossip_key": "gossip.key"}
        config = {
            "node": name, "addr": f"{self.address}:7400", "gossip_addr": f"{self.address}:7401", "state_dir": str(self.dir), "durable_dir": str(folder / "durable"),
            "pki": {k: str(folder / "pki" / v) for k, v in pki.items()}, "voters": [{"name": n, "addr": f"{a}:7400"} for n, a in addresses.items()],
            "seeds": [f"{a}:7401" for a in addresses.values()], "memory_margin": "16MiB", **more,
        }  # fmt: skip
        self.target = ("--config", str(self.dir / "replicad.yaml"))
        Path(self.target[1]).write_text(json.dumps(config))  # which is YAML too

    def lose(self, *pids: int) -> None:
        """All of its processes are gone, with their memory, and its address is silent; the processes of its ranks are ``pids``."""
        assert self.process is not None
        for pid in [*pids, self.keeper, *(j.process.pid for j in self.jobs if j.process.poll() is None), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        for kind, port in ((socket.SOCK_DGRAM, 7400), (socket.SOCK_DGRAM, 7401), (socket.SOCK_STREAM, 7401)):
            # A host that is up refuses what nobody listens to: these take it and say nothing.
            s = socket.socket(socket.AF_INET, kind)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((self.address, port))
            if kind == socket.SOCK_STREAM:
                s.listen(0)
            self.silence.append(s)
        self.log.rest()
        for job in self.jobs:
            job.wait()

    def stop(self) -> None:
        for s in self.silence:
            s.close()
        if not self.silence:
            super().stop()


@contextmanager
def cluster(names: str, **more: Any) -> Iterator[dict[str, Node]]:
    """A node for each letter; ``more`` is configuration."""
    folder = Path(tempfile.mkdtemp(prefix="replicad-n-"))
    (folder / "durable").mkdir()
    subprocess.run([str(ROOT / "bin" / "replicad"), "pki", "init", "--dir", str(folder / "pki"), *names], check=True, capture_output=True, timeout=PATIENCE)
    nodes = {name: Node(folder, name, names, more) for name in names}
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        for node in nodes.values():
            node.launch("--bootstrap")
            ending.callback(node.stop)
        for node in nodes.values():
            node.ready()
        yield nodes
