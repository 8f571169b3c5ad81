"""Whether a loss could be recovered from memory, by what is on record now: which step, from whom, and if not, why not."""

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
    """What `replicad status --json` says about the losses that matter to a rank. :class:`Again` where the leader did not answer: no
    other daemon knows who holds what."""
    found = next((j for j in status["jobs"] if j["id"] == str(job)), None)
    if found is None or not status["leader"] or not found.get("parts"):
        raise Again("feasible: no leader has reported who holds which part: call it again once `replicad status` names a leader, and the job is open")
    view = _View(status, found)
    of = {r["rank"]: r for r in found["ranks"]}
    mine = of[rank]
    nodes = {n: view.loss(f"node {n}", {n}) for n in sorted({r["node"] for r in found["ranks"] if r["group"] == mine["group"]})}
    return Feasible(view.step, live, view.loss(f"rank {rank}", set()), nodes[mine["node"]], nodes)


class _View:
    """A status, with the questions that a loss asks of it."""

    def __init__(self, status: dict[str, Any], job: dict[str, Any]) -> None:
        self.job, self.step = job, int(job["position"]["step"])
        self.silent = {n["name"] for n in status["nodes"] if n["state"] == "silent"}
        self.voters = {n["name"] for n in status["nodes"] if n["voter"]}

    def loss(self, of: str, lost: set[str]) -> Loss:
        gone = lost | self.silent
        holders = {p["part"]: tuple(n for n in p["nodes"] if n not in gone) for p in self.job["parts"]}
        return Loss(of, self.step, holders, tuple(self._why(lost, gone, holders)))

    def _why(self, lost: set[str], gone: set[str], holders: dict[str, tuple[str, ...]]) -> list[str]:
        why = [] if self.job["phase"] == "open" else [f"the job is {self.job['phase']}: a recovery is under way"]
        why += [self._alone(p["part"], p["nodes"], gone) for p in self.job["parts"] if not holders[p["part"]]]
        ranks = [r["rank"] for r in self.job["ranks"] if r["node"] in lost]
        able = {o["node"]: o["processes"] for o in self.job.get("offers") or () if o["node"] not in gone and o["node"] not in (self.job.get("quarantined") or ())}
        if len(ranks) > sum(able.values()):
            offers = ", ".join(f"{n}: {k}" for n, k in able.items()) or "none"
            why.append(f"{len(ranks)} processes would have to start elsewhere (ranks {', '.join(map(str, ranks))}), other nodes offer {offers}: start `replicad run --spare` there")
        left = self.voters - gone
        if lost & self.voters and 2 * len(left) <= len(self.voters):
            why.append(f"{len(left)} of {len(self.voters)} voters would be left, which is no majority: nothing could be planned")
        return why

    def _alone(self, part: str, nodes: list[str], gone: set[str]) -> str:
        """Why nobody would have a part of what is committed."""
        text = f"{part} of step {self.step} is held by {' and '.join(nodes) + ' alone' if nodes else 'nobody'}"
        older = [(h["generation"]["step"], h["node"]) for h in self.job.get("holdings") or () if h["part"] == part and h["node"] not in gone]
        if older:
            step, node = max(older)
            text += f"; node {node} had step {step} when it reported last"
        if self.job["degraded"] or self.job["copies"] < 2:
            text += f" (commits wait for {self.job['copies']} copies" + (", fewer than the job asks for)" if self.job["degraded"] else ": --min-copies)")
        return text
