"""Several daemons on loopback addresses of their own, which are the nodes of one cluster: `replicad chaos cluster` runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import PATIENCE, ROOT, Daemon, Lines, environment, stream


class Node(Daemon):
    """One of them. Its log is that of all."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Lines) -> None:
        self.name, self.process, self.log, self.jobs = name, process, log, []
        self.program, self.env = ROOT / "bin" / "replicad", environment()
        file = Path(json.loads(log.until('"event":"node"'))["config"])  # they come in the order of the names
        self.dir, self.target = file.with_suffix(""), ("--config", str(file))  # its state directory: two nodes may run programs of one name

    def lose(self, *pids: int) -> None:
        """All of its processes are gone, with their memory, and its addresses are silent; the processes of its ranks are ``pids``."""
        assert self.process is not None
        print("kill", self.name, file=self.process.stdin, flush=True)
        self.log.until('"event":"killed"')
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """Ends what it runs."""
        for job in self.jobs:
            if job.process.poll() is None:
                job.process.kill()
            job.wait()


@contextmanager
def cluster(names: str, *flags: str) -> Iterator[dict[str, Node]]:
    """A node for each letter; ``flags`` are further ones of the verb."""
    folder = tempfile.mkdtemp(prefix="replicad-n-")
    command = [str(ROOT / "bin" / "replicad"), "chaos", "cluster", "--nodes", ",".join(names), "--dir", folder, *flags]
    process = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = Lines(stream(process.stdout))
    nodes: dict[str, Node] = {}
    try:
        nodes |= {name: Node(name, process, log) for name in names}
        while len({json.loads(line)["node_name"] for line in log.seen if '"event":"linked"' in line}) < len(names):
            log.until('"event":"linked"')
        yield nodes
    finally:
        for node in nodes.values():
            node.stop()
        stream(process.stdin).close()
        log.rest()
        code = process.wait(PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)
    assert code == 0, f"the cluster ended with {code}:\n{log}"
