"""Breaks a rank at places and steps of a plan."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ..session import Session

__all__ = ["KINDS", "PLACES", "Fault", "Faults", "Injected"]

#: Where a rank can be broken, in the order in which a step comes by: in the middle of the model's forward, in the middle of its
#: backward, in the forward of a later micro-batch (gradients are half accumulated), in the optimizer step before and after the
#: update, while the worker copies the step's state; and in a recovery, between the load and the word that it is done.
PLACES = ("forward", "backward", "accumulate", "window", "updated", "capture", "resume")
#: SIGKILL to the process; a :class:`RuntimeError`; or the thread stands still for ever. A rank that hangs keeps its heartbeat: what ends
#: it is a peer whose collective times out (``init_process_group(timeout=)``). That peer's fault closes the epoch, and who does
#: not come to join the next one is ended, by the in-process wrapper after ``hard`` seconds or by the daemon after its ``settle`` and
#: ``ack`` times.
KINDS = ("kill", "raise", "hang")


class Injected(RuntimeError):
    """The exception of a fault of kind ``"raise"``."""


@dataclass(frozen=True)
class Fault:
    """One fault: at the first chance from ``step`` on (1 is the first step of training), once in the life of the job."""

    step: int
    rank: int
    where: str
    what: str = "kill"

    def __post_init__(self) -> None:
        if self.where not in PLACES or self.what not in KINDS:
            raise ValueError(f"fault what={self.what!r}, where={self.where!r}: want what to be one of {', '.join(KINDS)} and where one of {', '.join(PLACES)}")


class Faults:
    """Breaks this rank where a plan says so.

    ``folder`` is shared by all ranks and lives as long as the job: each fault leaves a file there when it happens (a JSON object: the
    fault, ``pid``, and ``t`` in nanoseconds since 1970), which keeps it from happening again in the process that takes over.
    A file ``stop-RANK`` with ``STEP WHERE [KIND]`` in that folder asks for one more while the job runs; without a kind the rank
    calls ``stopped(where, step)`` and stands still, to be killed from outside.

    ::

        faults = Faults.seeded(seed, world=2, steps=100, count=4, rank=rank, folder=folder)
        faults.attach(session, model)      # after the session is made
    """

    def __init__(self, plan: Iterable[Fault] = (), *, rank: int, folder: str | Path, stopped: Callable[[str, int], None] = lambda where, step: None) -> None:
        self.plan, self.rank, self.folder, self.stopped = tuple(plan), rank, Path(folder), stopped
        self._session: Session | None = None
        self._forwards = (0, 0)  # a step, and how many forwards of it there were

    @classmethod
    def seeded(cls, seed: int, *, world: int, steps: int, count: int, places: Iterable[str] = PLACES, kinds: Iterable[str] = ("kill", "raise"), **more: Any) -> Faults:
        """A plan of ``count`` faults that depends on the seed alone: each in its part of the run, at a random step of it, in a random
        rank. Places are drawn without repetition as long as there are some. A fault in a recovery needs one to recover from: it
        comes with the recovery from the fault before it, in another rank where there is one."""
        draw = random.Random(seed)
        bag: list[Any] = []
        plan: list[Any] = []
        places, kinds = list(places), list(kinds)
        for i in range(count):
            bag = bag or draw.sample(places, len(places))
            if not plan and bag[0] == "resume" and len(bag) > 1:
                bag.append(bag.pop(0))
            where, what = bag.pop(0), draw.choice(kinds)
            if where == "resume" and plan:
                # Beyond what recoveries from earlier faults go back to. How far this one goes back depends on how far commits are behind.
                plan.append(Fault(1 + max((f.step for f in plan[:-1]), default=0), (plan[-1].rank + 1) % world, where, what))
                continue
            part = (steps - 2) / count
            plan.append(Fault(2 + int(part * i + draw.random() * part), draw.randrange(world), where, what))
        return cls(plan, **more)

    @classmethod
    def from_environment(cls, rank: int, stopped: Callable[[str, int], None] = lambda where, step: None) -> Faults | None:
        """The faults that the variable TRAINING_FAULTS asks for (REPLICAD_* are the launcher's): a folder, where ``plan.json`` lists
        them if there is such a file. None where it is not set."""
        folder = os.environ.get("TRAINING_FAULTS") or os.environ.get("TEXTLM_FAULT_DIR")  # the latter: `replicad demo`
        if not folder:
            return None
        try:
            plan = [Fault(**f) for f in json.loads(Path(folder, "plan.json").read_text())]
        except FileNotFoundError:
            plan = []
        return cls(plan, rank=rank, folder=folder, stopped=stopped)

    def write(self) -> None:
        """Writes the plan for :meth:`from_environment`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(json.dumps([asdict(f) for f in self.plan]))

    def happened(self) -> list[dict[str, Any]]:
        """What was injected so far, in order: the files' contents."""
        return sorted((json.loads(p.read_text()) for p in self.folder.glob("fault-*")), key=lambda f: int(f["t"]))

    def attach(self, session: Session, model: torch.nn.Module) -> None:
        """Hooks into the session and the model's middle layer; nothing of the training changes by it."""
        self._session = session
        self.folder.mkdir(parents=True, exist_ok=True)
        session.reached = self.at
        session.rank.before_capture = self._capture
        leaves = [m for m in model.modules() if not list(m.children())]
        leaves = [m for m in leaves if list(m.parameters(recurse=False))] or leaves  # FSDP1 takes parameters off their modules
        middle = leaves[len(leaves) // 2]
        middle.register_forward_pre_hook(lambda module, args: self._forward())
        middle.register_forward_hook(lambda module, args, out: self._backward(out))

    def _forward(self) -> None:
        assert self._session is not None
        step = self._session.at + 1
        self._forwards = (step, self._forwards[1] + 1 if self._forwards[0] == step else 1)
        self.at("forward" if self._forwards[1] == 1 else "accumulate", step)

    def _backward(self, out: Any) -> None:
        """Waits for the gradient of what the middle layer returned. A parameter would not do: FSDP1 computes with others."""
        session = self._session
        assert session is not None
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if getattr(t, "requires_grad", False):
                t.register_hook(lambda grad: self.at("backward", session.at + 1))
                return

    def _capture(self, step: int) -> None:
        if step:
            self.at("capture", step)

    def at(self, where: str, step: int) -> None:
        """Says where this rank is, for places that :meth:`attach` can't see; what is due there happens."""
        for i, f in enumerate(self.plan):
            if f.rank == self.rank and f.where == where and step >= f.step and self._first(i, f, step):
                self._break(f.what, where, step)
        self._asked(where, step)

    def _first(self, i: int, fault: Fault, step: int) -> bool:
        """Records that fault i happens now; False if it has happened already."""
        try:
            with open(self.folder / f"fault-{i}", "x") as f:
                json.dump({"t": time.time_ns(), "pid": os.getpid(), **asdict(fault), "step": step}, f)
        except FileExistsError:
            return False
        return True

    def _asked(self, where: str, step: int) -> None:
        request = self.folder / f"stop-{self.rank}"
        try:
            at, wanted, *what = request.read_text().split()
        except (FileNotFoundError, ValueError):
            return
        if wanted != where or step < int(at):
            return
        self.stopped(where, step)
        if not what:
            _stand()
        request.unlink(missing_ok=True)
        self._break(what[0], where, step)

    def _break(self, what: str, where: str, step: int) -> None:
        if what == "raise":
            raise Injected(f"injected in {where} of step {step}, rank {self.rank}")
        if what == "kill":
            if where != "capture":
                os.kill(os.getpid(), signal.SIGKILL)
            # The copy begins meanwhile, and the kill finds it at some point.
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL), daemon=True).start()
            return
        _stand()


def _stand() -> None:
    while True:
        time.sleep(3600)
