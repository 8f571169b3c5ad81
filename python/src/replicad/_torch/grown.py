"""What a session keeps that its program did not have, or did not keep at each step, when the session was made: what was thawed, what an optimizer got, what grew.

A later process of the rank begins as the program begins, without all of that. The job keeps a recipe, by name, and the process makes what it names before it registers
its state. Values are not in there: they are loaded.
"""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .._core import capsule
from ..errors import Corrupt, Mismatch, Unsupported

__all__ = ["Grown", "Grows", "More"]

log = logging.getLogger("replicad")

#: The most that a recipe may have, packed (the C client's RP_RECIPE_MAX) and unpacked.
MOST, UNPACKED = 64 << 10, 32 << 20
VERSION = 1


class Grows(Mismatch):
    """Something is to be kept from now on that was not. Its text is what is said where it can't be."""


@dataclass(frozen=True)
class More:
    """What there is to keep that was not, when a step is over. ``moving`` parameters ask for no gradient, and
    those to keep ``anew``, once, are what the program has put in place after the job had them. ``full``: small values have no room. ``of`` is for who reads those."""

    grows: Grows | None
    moving: list[str]
    full: bool
    of: tuple[Any, ...]
    anew: list[str]

    @property
    def must(self) -> bool:
        """Whether training can't go on without."""
        return self.grows is not None or self.full


@dataclass
class Grown:
    """By name. ``window``: parameters that asked for no gradient, and change. ``asks``: those of them that ask for one now. ``groups``: the parameters of groups that an
    optimizer got. ``state``: type and shape of each tensor that came into an optimizer's state, by optimizer and parameter. ``rooms``: of capsules, in bytes. ``fits``: what each
    rank's trainer had at the end of each fit that is over (:mod:`replicad.adapters._fits`)."""

    window: list[str] = field(default_factory=list)
    asks: list[str] = field(default_factory=list)
    groups: dict[str, list[list[str]]] = field(default_factory=dict)
    state: dict[str, dict[str, dict[str, tuple[str, list[int]]]]] = field(default_factory=dict)
    rooms: dict[str, int] = field(default_factory=dict)
    fits: list[list[Any]] = field(default_factory=list)

    def pack(self) -> bytes:
        """The recipe. :class:`Unsupported` where it has too many names."""
        packed = zlib.compress(capsule.pack({"version": VERSION, **vars(self)}, "recipe"), 9)
        if len(packed) > MOST:
            what = "had at the ends of its fits" if self.fits else "has grown by"
            raise Unsupported(
                f"what this job {what} takes {len(packed)} bytes to name, at most {MOST}: let what is to be trained ask for a gradient, in the optimizer, when the session "
                "is made, and have fewer fits in one program"
            )
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> Grown:
        """The inverse of :meth:`pack`; nothing where there is no recipe. :class:`Corrupt` for what is none."""
        if not packed:
            return cls()
        inflate = zlib.decompressobj()
        try:
            tree = capsule.unpack(inflate.decompress(packed, UNPACKED))
        except (zlib.error, Corrupt) as err:
            raise Corrupt(f"the job's recipe: {err}") from None
        want = {"version", *vars(cls())}
        if inflate.unconsumed_tail or not isinstance(tree, dict) or tree.keys() != want or tree["version"] != VERSION:
            raise Corrupt("the job's recipe is of another version, or none: use the release that wrote it")
        names = {k: tree[k] for k in want - {"version"}}
        if not (all(isinstance(names[k], list) for k in ("window", "asks", "fits")) and all(isinstance(names[k], dict) for k in ("groups", "state", "rooms"))):
            raise Corrupt("the job's recipe is none: use the release that wrote it")
        return cls(**names)

    def take(self, models: Mapping[str, torch.Tensor], optimizers: Mapping[str, Any]) -> None:
        """Has a program that begins anew have what is named, before the state of its optimizers is made. ``models`` are the models' parameters by name. :class:`Mismatch`
        for a name that this program does not have."""
        for name in self.window:
            self._one(name, models)
        for name in self.asks:
            self._one(name, models).requires_grad_()
        for name, groups in self.groups.items():
            optimizer = self._one(name, optimizers)
            for names in groups:
                there = {id(p) for g in optimizer.param_groups for p in g["params"]}
                params = [self._one(n, models) for n in names]
                if not any(id(p) in there for p in params):
                    optimizer.add_param_group({"params": params})
            if "add_param_group" not in vars(optimizer):
                optimizer.add_param_group = functools.partial(_add, optimizer, optimizer.add_param_group)

    def take_state(self, names: Mapping[int, str], optimizers: Mapping[str, Any]) -> None:
        """The tensors of optimizers' state that came late, where they are not there; behind the making of the state."""
        for name, of in self.state.items():
            optimizer = self._one(name, optimizers)
            for group in optimizer.param_groups:
                for p in group["params"]:
                    for key, (dtype, shape) in of.get(names.get(id(p), ""), {}).items():
                        if optimizer.state[p].get(key) is None:
                            optimizer.state[p][key] = torch.zeros(shape, dtype=getattr(torch, dtype), device=p.device)

    @staticmethod
    def _one(name: str, of: Mapping[str, Any]) -> Any:
        if name not in of:
            raise Mismatch(f"this job trains {name}, which it has taken up on its way, and this program has none of that name: start the program that the job was started with")
        return of[name]

    def lines(self, before: Grown, anew: list[str]) -> Iterator[str]:
        """What there is more than before, or ``anew``, for a line that a person reads."""
        if anew:
            yield f"{anew[0]}{f' and {len(anew) - 1} more' if len(anew) > 1 else ''} as put in place behind resume()"
        if new := [n for n in self.window if n not in before.window]:
            yield f"{new[0]}{f' and {len(new) - 1} more' if len(new) > 1 else ''} change now"
        for name, groups in self.groups.items():
            if more := sum(map(len, groups)) - sum(map(len, before.groups.get(name, []))):
                yield f"{name} got {more} parameter{'s' if more > 1 else ''}"
        for name, state in self.state.items():
            if more := len(state) - len(before.state.get(name, {})):
                yield f"{name} keeps more of {more} parameter{'s' if more > 1 else ''}"
        for name, room in self.rooms.items():
            if room != before.rooms.get(name):
                yield f"{name} has room for {room} bytes"


def _add(optimizer: torch.optim.Optimizer, add: Callable[[dict[str, Any]], None], group: dict[str, Any]) -> None:
    """A program that was written to resume adds the group again: it has it already, with the job's hyperparameters."""
    params = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
    there = {id(p) for g in optimizer.param_groups for p in g["params"]}
    if params and all(id(p) in there for p in params):
        log.info("replicad: the optimizer has this group of %d parameters already, as the job has: it is not added again", len(params))
    else:
        add(group | {"params": params})
