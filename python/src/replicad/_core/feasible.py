"""Whether a loss could be recovered from memory: which step, from whom, and if not, why not. The leader says so in its status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..errors import Again

__all__ = ["Feasible", "Loss", "feasible"]


@dataclass(frozen=True)
class Loss:
    """The loss of something, were it now: true where the job would go on from memory."""

    of: str  #: "rank 0", "node a"
    step: int  #: the job would go on from the state after this step, or from a newer one that the survivors have
    holders: dict[str, tuple[str, ...]]  #: by part ("group 0", "private 1"): the nodes that would be left with it
    why: tuple[str, ...] = ()  #: why not

    def __bool__(self) -> bool:
        return not self.why

    def __str__(self) -> str:
        return f"loss of {self.of}: " + ("; ".join(self.why) or f"on from step {self.step}, from {', '.join(sorted({n for nodes in self.holders.values() for n in nodes}))}")


@dataclass(frozen=True)
class Feasible:
    """True where none of these losses would need the disk, or a person."""

    step: int  #: committed on the whole job
    live: int  #: of this rank; what lies between is lost with whoever alone has it
    rank: Loss  #: of this rank's process
    node: Loss  #: of this rank's node
    nodes: dict[str, Loss]  #: of any one node that runs a rank of this replica group

    def __bool__(self) -> bool:
        return bool(self.rank) and bool(self.node) and all(self.nodes.values())

    def __str__(self) -> str:
        return "\n".join([f"step {self.step} is committed, {self.live} is live", *map(str, [self.rank, *self.nodes.values()])])


def feasible(status: dict[str, Any], job: UUID, rank: int, live: int) -> Feasible:
    """What the leader says in `replicad status --json` about the losses that matter to a rank. :class:`Again` where the leader did not answer: no
    other daemon knows who holds what."""
    found = next((j for j in status["jobs"] if j["id"] == str(job)), None)
    if found is None or not status["leader"] or not found.get("parts") or not found.get("losses"):
        raise Again("feasible: no leader has reported who holds which part: call it again once `replicad status` names a leader, and the job is open")
    said, step, silent = {loss["of"]: loss for loss in found["losses"]}, int(found["position"]["step"]), set(found.get("silent") or ())

    def loss(of: str, key: str) -> Loss:
        gone = silent | set(said[key]["nodes"])
        holders = {p["part"]: tuple(n for n in p["nodes"] if n not in gone) for p in found["parts"]}
        return Loss(of, step, holders, tuple(said[key].get("why") or ()))

    of = {r["rank"]: r for r in found["ranks"]}
    mine = of[rank]
    nodes = {n: loss(f"node {n}", f"node {n}") for n in sorted({r["node"] for r in found["ranks"] if r["group"] == mine["group"]})}
    return Feasible(step, live, loss(f"rank {rank}", "process"), nodes[mine["node"]], nodes)
