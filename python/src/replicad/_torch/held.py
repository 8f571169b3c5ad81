"""A step that a trainer's hooks begin and end: one hook enters the block of :meth:`replicad.Session.step`, and another one leaves it.

No ``with`` stands around what is between the two, so that an exception that ends it is seen by nobody here unless somebody tells of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from ..errors import SessionState

__all__ = ["Held", "behind_closure"]


class Held:
    """The block that hooks hold open, if they do."""

    def __init__(self) -> None:
        self._block: AbstractContextManager[int] | None = None

    def __bool__(self) -> bool:
        return self._block is not None

    def begin(self, block: AbstractContextManager[int]) -> int:
        """Enters it."""
        step = block.__enter__()
        self._block = block
        return step

    def end(self, inside: object) -> None:
        """Leaves it. ``inside`` says whether a step is open at all."""
        if (block := self.drop()) is None:
            why = "the step that is open was begun by `with session.step()`, which ends it" if inside else "no step is open"
            raise SessionState(f"step_end() without step_begin(): {why}. Call step_begin() where the gradients are final, and step_end() once behind the update")
        block.__exit__(None, None, None)

    def tear(self, err: BaseException) -> None:
        """Has it end by an exception, which somebody else raises."""
        if (block := self.drop()) is not None:
            block.__exit__(type(err), err, err.__traceback__)

    def drop(self) -> AbstractContextManager[int] | None:
        """Forgets it. Nothing follows from that, as long as its step is known to be over."""
        block, self._block = self._block, None
        return block


def behind_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any], then: Callable[[], None]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of an optimizer's ``step``, the optimizer first, with a closure that calls ``then`` when it has returned. None where no closure is given."""
    at_place = len(args) > 1
    closure = args[1] if at_place else kwargs.get("closure")
    if closure is None:
        return None

    def looked(*a: Any, **k: Any) -> Any:
        out = closure(*a, **k)
        then()
        return out

    return ((args[0], looked, *args[2:]), dict(kwargs)) if at_place else (args, {**kwargs, "closure": looked})
