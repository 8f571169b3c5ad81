"""What a process begins its random numbers with, and whether something has drawn from them that nobody has seeded.

A program that draws a split of its data when it starts, and seeds nothing, has another split in each process. Whether numbers were drawn can be told afterwards: python's
and numpy's generators go from one block of 624 words to the next, so that a state which is some blocks behind the first one was drawn to, and any other one was seeded.
Torch's says its seed.
"""

from __future__ import annotations

import hashlib
import random
import sys
from dataclasses import dataclass
from typing import Any

__all__ = ["Beginning", "begin", "drawn"]

WORDS = 624
#: So many blocks behind the first state are looked at: 640,000 numbers.
BLOCKS = 1024
#: So few draws are libraries', for names of their own as they are imported (rich draws one, which Lightning imports), and no split of data.
FEW = 4
#: Of what tells a generator from another process's, and what stands for a generator that is not there.
DIGITS, NONE = 16, "-" * 16
#: What to call, by generator.
SEEDED_BY = {"torch": "torch.manual_seed(N)", "python": "random.seed(N)", "numpy": "numpy.random.seed(N)"}

Place = tuple[tuple[int, ...], int]  #: of a twister: its words, and the next one's number

_first: dict[str, Place] = {}


def begin() -> None:
    """When the package is imported, and again in a process that was forked after that."""
    _first.clear()
    _first["python"] = _pythons()
    if (now := _numpys()) is not None:
        _first["numpy"] = now


def drawn(first: Place, now: Place) -> bool:
    """Whether more than a few numbers (of 32 bits) were drawn since ``first``, and nobody has seeded the generator since."""
    if first[0] == now[0]:
        return now[1] - first[1] > FEW
    probe, walk = random.Random(0), random.Random(0)
    probe.setstate((3, (*now[0], 0), None))
    want = probe.getrandbits(32 * WORDS)
    walk.setstate((3, (*first[0], WORDS), None))
    block = next((i for i in range(BLOCKS) if walk.getrandbits(32 * WORDS) == want), -1)
    return block >= 0 and WORDS - first[1] + block * WORDS + now[1] > FEW


def _pythons() -> Place:
    words = random.getstate()[1]
    return words[:WORDS], words[WORDS]


def _numpys() -> Place | None:
    """None where numpy is not there, or draws otherwise."""
    np: Any = sys.modules.get("numpy.random")
    if np is None or not hasattr(np, "get_bit_generator") or type(np.get_bit_generator()) is not np.MT19937:
        return None
    _, words, at, *_ = np.get_state()
    return tuple(map(int, words)), int(at)


def _numpys_first(np: Any) -> Place | None:
    """The state with which numpy was imported, if nobody has seeded it; None: somebody has, or numpy does not say."""
    sequence = getattr(np.get_bit_generator(), "seed_seq", None)
    return None if sequence is None else (tuple(map(int, np.MT19937(sequence).state["state"]["key"])), WORDS)


def _digest(place: Place) -> str:
    return hashlib.sha256(repr(place).encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Beginning:
    """The generators of a process when it made its session."""

    seeds: dict[str, str]  #: what tells them from another process's: torch's seed, and digests
    places: dict[str, Place]
    pristine: bool  #: nothing was drawn from torch's

    @classmethod
    def now(cls) -> Beginning:
        """Those of this moment."""
        places = {name: place for name, place in (("python", _pythons()), ("numpy", _numpys())) if place is not None}
        seeds = {name: _digest(place) for name, place in places.items()}
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return cls(seeds, places, True)
        seeds["torch"] = f"{(seed := torch.initial_seed()) % 2**64:0{DIGITS}x}"
        as_seeded = torch.Generator().manual_seed(seed).get_state()
        return cls(seeds, places, torch.equal(as_seeded, torch.default_generator.get_state()))

    def text(self) -> str:
        """For the commit. It has one length: the room of what it is in follows from that, and has to be the same in each process of a rank."""
        return " ".join(f"{name}={self.seeds.get(name, NONE)}" for name in SEEDED_BY)

    def otherwise(self, first: str) -> list[str]:
        """The generators that the program has drawn from before its session, and that gave other numbers to the process whose :meth:`text` this is, as nothing has seeded them,
        or with something else."""
        then = dict(x.split("=", 1) for x in first.split() if "=" in x)
        differ = [name for name in SEEDED_BY if name in self.seeds and then.get(name, NONE) not in (NONE, self.seeds[name])]
        return [name for name in differ if self._unseeded(name)]

    def _unseeded(self, name: str) -> bool:
        if name == "torch":
            return not self.pristine
        since = _first.get(name)
        if since is None and name == "numpy":
            since = _numpys_first(sys.modules["numpy.random"])
        return since is not None and drawn(since, self.places[name])
