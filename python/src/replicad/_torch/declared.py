"""What of a program was changed on purpose since the generation that it begins from was written: names that were others, that are new, that are gone.

Patterns are dotted names as models have them, without the name of the object (``head.weight``, not ``model.head.weight``), or with it; one that ends in ``.*`` means all
that lies below. An optimizer's state of a parameter goes with the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._core.generations import prefixes
from ..errors import Invalid

__all__ = ["Declared"]


def _checked(what: str, pattern: Any) -> str:
    if not isinstance(pattern, str) or not pattern or "*" in pattern.removesuffix(".*") or pattern == ".*":
        raise Invalid(f"{what}: {pattern!r}: want a dotted name, or one with .* at its end for all that lies below, as 'head.*'")
    return pattern


def _below(pattern: str, name: str) -> str | None:
    """What of a name lies behind a pattern; None: the pattern does not mean it."""
    stem = pattern.removesuffix(".*")
    if name == stem:
        return ""
    return name[len(stem) :] if name.startswith(stem + ".") else None


class Declared:
    """``was`` has for names of now what they were then; ``fresh`` are those of now that were not there, ``dropped`` those of then that are no more."""

    def __init__(self, was: Mapping[str, str] | None = None, fresh: Iterable[str] = (), dropped: Iterable[str] = ()) -> None:
        if isinstance(fresh, str) or isinstance(dropped, str):
            raise Invalid("fresh and dropped: want lists of names, as fresh=['head.*']")
        self.was = {_checked("was", now): _checked("was", then) for now, then in (was or {}).items()}
        for now, then in self.was.items():
            if now.endswith("*") != then.endswith("*"):
                raise Invalid(f"was: {now!r}: {then!r}: want .* at the end of both, or of neither")
        self.fresh = [_checked("fresh", p) for p in fresh]
        self.dropped = [_checked("dropped", p) for p in dropped]
        self.heads: list[str] = []
        self._models: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.was or self.fresh or self.dropped)

    def of(self, models: Iterable[str], optimizers: Iterable[str]) -> Declared:
        """The same, of a session with objects of these names."""
        models = list(models)
        self._models = [f"{m}." for m in models]
        self.heads = sorted([f"{o}.{m}." for o in optimizers for m in models] + [f"{m}." for m in models], key=len, reverse=True)
        return self

    def _owner(self, name: str) -> tuple[str, str]:
        """The optimizer that has a tensor as a parameter's state, and the model that the parameter is of; empty: none, nor any."""
        head = next((h for h in self.heads if name.startswith(h)), "")
        model = next((m for m in self._models if head.endswith(m)), "")
        return head.removesuffix(model), model

    def _forms(self, name: str) -> list[tuple[str, str]]:
        """A name as patterns may mean it: whole; without the optimizer; without the model, too. With what is left out each time."""
        owner, model = self._owner(name)
        return list(dict.fromkeys([("", name), (owner, name[len(owner) :]), (owner + model, name[len(owner + model) :])]))

    def then(self, name: str) -> str:
        """The name that it had."""
        for now, was in self.was.items():
            for left, form in self._forms(name):
                if (more := _below(now, form)) is not None:
                    return left + was.removesuffix(".*") + more
        return name

    def _any(self, patterns: list[str], name: str) -> bool:
        return any(_below(p, form) is not None for p in patterns for _, form in self._forms(name))

    def parameters(self, name: str) -> list[str]:
        """What may be the parameter whose state an optimizer's tensor is."""
        owner, _ = self._owner(name)
        return prefixes(name[len(owner) :]) if owner else []

    def is_fresh(self, name: str) -> bool:
        """Whether it was not there, and begins as the program has made it."""
        return self._any(self.fresh, name)

    def is_dropped(self, name: str) -> bool:
        """Whether what was there under this name is not wanted."""
        return self._any(self.dropped, name)

    def idle(self, now: Iterable[str], then: Iterable[str]) -> list[str]:
        """What was declared of names that nothing has, for people: a slip of the pen would pass for a declaration otherwise."""
        now, then = list(now), list(then)
        out = [f"was: nothing here is called {p}" for p in self.was if not any(self._any([p], n) for n in now)]
        out += [f"fresh: nothing here is called {p}" for p in self.fresh if not any(self._any([p], n) for n in now)]
        return out + [f"dropped: nothing there is called {p}" for p in self.dropped if not any(self._any([p], n) for n in then)]

    def lines(self) -> list[str]:
        """What was declared, for people."""
        return [f"{now} was {then}" for now, then in self.was.items()] + [f"{p} is fresh" for p in self.fresh] + [f"{p} is dropped" for p in self.dropped]
