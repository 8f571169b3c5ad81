"""What all adapters stand on: which versions they were tested with, and state that lies in attributes of a framework's objects."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .._torch.loaders import tells
from ..errors import Mismatch, SessionState, Unsupported

__all__ = ["Attributes", "OneStep", "want"]


def want(package: str, least: str, has: str | None = None, most: str | None = None) -> None:
    """Refuses, before anything is made, a version that the adapter was not tested with: below ``least``, or above ``most``: that major version, and before 1.0 that minor
    one. :class:`replicad.Unsupported`, or ``ImportError`` where there is none. ``has`` is the version that the package itself says, which a source tree has alone."""
    try:
        has = has or importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"{package} is not installed: pip install '{package}>={least}'", name=package) from None
    major = least.partition(".")[0]
    most = most or (least if major == "0" else major)
    end = (*_numbers(most)[:-1], _numbers(most)[-1] + 1)
    if not _numbers(least) <= _numbers(has) < end:
        raise Unsupported(f"{package} {has}: want {least} to {most}.x (pip install '{package}>={least},<{'.'.join(map(str, end))}')")


def _numbers(version: str) -> tuple[int, ...]:
    """Its release, as it is compared; what follows the numbers (``.dev0``, ``+cpu``) is no matter."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


class Attributes:
    """State that lies in attributes of an object: ``replicad.moves(Attributes(trainer.state, "global_step", "epoch"))``. Their values are what
    can be kept: numbers, texts, lists, dicts, tensors."""

    def __init__(self, obj: Any, *names: str) -> None:
        self._obj, self._names = obj, names

    def state_dict(self) -> dict[str, Any]:
        """The values as they are now."""
        return {name: getattr(self._obj, name) for name in self._names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts them back. :class:`replicad.Mismatch` where others were kept."""
        if state.keys() != set(self._names):
            raise Mismatch(
                f"{type(self._obj).__name__}: the copy has {', '.join(sorted(state)) or 'nothing'}, want {', '.join(sorted(self._names))}: use the release that wrote it"
            )
        for name, value in state.items():
            setattr(self._obj, name, value)


class OneStep:
    """Refuses a second step of a session before the loop has asked for its next batch: a restart between the two would go on with that, and leave the second update out. Where
    no loader says when that is, nothing is known, and nothing refused."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._asks = self._stepped = False
        for o in filter(tells, data):
            o.before_a_batch(self._asked)

    def _asked(self, *_: Any) -> None:
        self._asks, self._stepped = True, False

    def begins(self, optimizer: Any) -> None:
        """An ``optimizer.step()`` outside of a block is about to be a step."""
        if self._stepped:
            raise SessionState(
                f"{type(getattr(optimizer, 'optimizer', optimizer)).__name__}.step() is the second step with one batch, and a restart between the two would leave it out: put both "
                "updates into one `with session.step():`"
            )
        self._stepped = self._asks
