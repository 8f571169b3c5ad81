"""``torchrun --rdzv-backend=replicad --rdzv-id=JOB ... train.py``: torchrun's agents meet through the daemons, and its processes are ranks of a job.

The job's world is what ``--nnodes`` says first, times ``--nproc-per-node``. ``--rdzv-conf NAME=VALUE,...`` has flags of ``replicad exec``. An agent speaks to a
process of its own, ``replicad agent``, which stands for it with the daemon of the node.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo

from .._core.generations import binary
from ..errors import Error

__all__ = ["Handler", "handler"]

log = logging.getLogger("replicad")

BACKEND = "replicad"
#: torchrun puts it among the options if nobody has: how long agents wait for one another there.
TIMEOUT = ("timeout", 900)
#: How long an agent tries to reach the store of a round. Its server has been there since before the round was made.
CONNECT = timedelta(seconds=30)
#: How long the store is waited for, as torch does by itself.
STORE = timedelta(seconds=300)
#: How long the process that stands for an agent may take to end, in seconds.
END = 10.0


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torchrun finds by the name of the backend (the entry point ``torchrun.handlers``)."""
    return Handler


def refuse(text: str, code: int = 2) -> NoReturn:
    """Ends torchrun with one line. What it catches it would print with a traceback."""
    if text:
        sys.stderr.write(f"replicad: {text}\n")
        sys.stderr.flush()
    raise SystemExit(code)


def processes() -> int | None:
    """How many processes torchrun's command line asks for on this node; None: this program is not torchrun. Handlers are not told."""
    from torch.distributed.run import determine_local_world_size, parse_args

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            args = parse_args(sys.argv[1:])  # type: ignore[no-untyped-call]
    except SystemExit:
        return None
    return determine_local_world_size(args.nproc_per_node) if args.rdzv_backend == BACKEND else None


def flags(params: RendezvousParameters) -> list[str]:
    """Those of ``replicad agent``."""
    given = {name.replace("_", "-"): str(value) for name, value in params.config.items()}
    if given.pop(TIMEOUT[0], None) not in (None, str(TIMEOUT[1])):
        refuse("--rdzv-conf timeout: agents wait for one another without a limit, and say for whom: leave it out")
    if "job" in given or not params.run_id or params.run_id == "none":
        refuse("the job's name is what --rdzv-id says: give --rdzv-id=NAME, and no job in --rdzv-conf")
    if "nodes" in given:
        refuse("--rdzv-conf nodes: --nnodes says how many there are")
    if "world" not in given:
        each = processes()
        if each is None:
            refuse("the world is not known, since this is not torchrun: give its number of processes as world=N among the rendezvous options")
        given["world"] = str(params.min_nodes * each)
    if params.local_addr:
        given.setdefault("host", params.local_addr)
    return [f"--job={params.run_id}", f"--nodes={params.min_nodes}", *(f"--{name}={value}" for name, value in given.items())]


class _Agent:
    """A running `replicad agent`. A thread reads what it says."""

    def __init__(self, arguments: list[str]) -> None:
        try:
            # In a session of its own: an interrupt from the terminal is torchrun's to handle, which then closes it.
            self._process = subprocess.Popen([binary(), "agent", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True)
        except (OSError, Error) as err:
            refuse(f"the replicad program can't be started: {err}")
        self._news = threading.Condition()
        self._ended = False
        self.ready: dict[str, Any] | None = None
        self._rounds: list[dict[str, Any]] = []  # since it joined: one
        self.done: tuple[int, str] | None = None
        self.waiting = 0
        threading.Thread(target=self._read, name="replicad-agent", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._learn(json.loads(line))
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _learn(self, news: dict[str, Any]) -> None:
        with self._news:
            if "env" in news:
                self.ready = news
            elif "round" in news:
                self._rounds.append(news)
                self.waiting = 0  # so many waited for this one to leave the round before
            elif "waiting" in news:
                self.waiting = news["waiting"]
            elif "done" in news:
                self.done = news["done"], news["text"]
            self._news.notify_all()

    def until(self, there: Callable[[], bool]) -> None:
        """Waits for news; a process that has ended has said why."""
        with self._news:
            self._news.wait_for(lambda: self._ended or there())
            if there():
                return
        self.close()
        refuse("", self._process.returncode or 1)

    def say(self, **line: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end says why
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def join(self, address: str) -> dict[str, Any]:
        """The next round."""
        with self._news:
            self._rounds.clear()
        self.say(join=address)
        self.until(lambda: bool(self._rounds) or self.done is not None)
        if not self._rounds:
            assert self.done is not None
            refuse(self.done[1], self.done[0])
        return self._rounds[-1]

    def waits(self) -> int:
        """How many agents wait for this one to leave its round."""
        with self._news:
            if self._ended:
                raise RendezvousConnectionError(f"replicad agent has ended with status {self._process.wait()}: see what it printed")
            return self.waiting

    def close(self) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        self.say(close=True)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Handler(RendezvousHandler):
    """Brings an agent into the rounds of its job. Each round has a store of its own, which the agent of node rank 0 serves."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._run, self._nodes = params.run_id, params.min_nodes
        self._agent = _Agent(flags(params))
        self._agent.until(lambda: self._agent.ready is not None)
        assert self._agent.ready is not None
        self._host: str = self._agent.ready["host"]
        for name in [name for name in os.environ if name.startswith("REPLICAD_")]:
            del os.environ[name]
        os.environ.update(self._agent.ready["env"])  # of the processes: they have torchrun's environment
        # All agents have as many processes, so ranks follow from the round: nobody has to be asked who may be gone by then.
        os.environ.setdefault("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
        self._server: TCPStore | None = None

    def get_backend(self) -> str:
        """What ``--rdzv-backend`` says."""
        return BACKEND

    def get_run_id(self) -> str:
        """The job's name."""
        return self._run

    @property
    def use_agent_store(self) -> bool:
        """The processes meet at the round's store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for the next round."""
        while True:
            # A new one each time: what processes of the last round left there is not to be read.
            server = TCPStore(self._host, 0, is_master=True, wait_for_workers=False, timeout=STORE)
            at = self._agent.join(f"[{self._host}]:{server.port}" if ":" in self._host else f"{self._host}:{server.port}")
            host, _, port = at["head"].rpartition(":")
            host = host.removeprefix("[").removesuffix("]")
            store = self._server = server
            if at["rank"] != 0:
                try:
                    store, self._server = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=CONNECT), None
                except RuntimeError as err:
                    log.warning("the agent of node rank 0, at %s, does not answer (%s): joining again", at["head"], err)
                    continue
            store.set_timeout(STORE)
            return RendezvousInfo(PrefixStore("replicad/agents", store), at["rank"], self._nodes, RendezvousStoreInfo(host, int(port)))

    def num_nodes_waiting(self) -> int:
        """How many agents wait for this one to leave its round."""
        return self._agent.waits()

    def is_closed(self) -> bool:
        """Whether there is no further round."""
        return self._agent.done is not None

    def set_closed(self) -> None:
        """Says that there is to be none."""
        self._agent.say(close=True)

    def shutdown(self) -> bool:
        """Ends what stands for this agent, and the rendezvous."""
        self._agent.close()
        return True
