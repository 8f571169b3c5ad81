"""A named piece of live state, as the C client takes it."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass, field
from typing import Any

from ..errors import Invalid
from . import native as n

__all__ = ["Region"]


@dataclass(frozen=True)
class Region:
    """A named piece of live state.

    ``address`` points to ``nbytes`` bytes that stay where they are until the rank is closed; ``keep`` holds whatever owns
    them. ``shape`` is in elements of ``dtype`` (a name that torch and numpy share); their product times the element size is
    ``nbytes``. ``private`` state differs from rank to rank of a group, the rest is equal on all of them. ``changes`` says
    when the bytes may change: in the optimizer ``"window"`` alone, ``"any"`` time between two windows as well, or ``"never"``.
    A private region is copied when the window opens, and so must not change in it; one that says ``"window"`` may, and has all private regions
    copied when the window closes.
    """

    name: str
    address: int
    nbytes: int
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()
    private: bool = False
    changes: str = "window"
    keep: Any = field(default=None, repr=False, compare=False)

    def fill(self, r: n.Region) -> bytes:
        """Writes the region into a C structure; returns its name, which must live as long as the structure."""
        try:
            name = self.name.encode()
        except UnicodeEncodeError:
            raise Invalid(f"region {self.name!r}: its name is not UTF-8: give it another") from None
        if not 0 < len(name) <= n.MAX_NAME or b"\0" in name:  # which would end it in C
            raise Invalid(f"region {self.name!r}: want a name of 1 to {n.MAX_NAME} bytes, none of them zero")
        if self.dtype not in n.DTYPES:
            raise Invalid(f"region {self.name!r}: unknown dtype {self.dtype!r}: want one of {', '.join(n.DTYPES)}")
        classes = {"window": n.WINDOW, "any": n.VOLATILE, "never": n.FROZEN}
        if self.changes not in classes:
            raise Invalid(f"region {self.name!r}: changes={self.changes!r}: want one of {', '.join(classes)}")
        shape = self.shape if len(self.shape) <= n.MAX_DIMS else (self.nbytes // _size(self.dtype),)
        r.struct_size, r.dtype, r.ndim = c.sizeof(n.Region), n.DTYPES[self.dtype], len(shape)
        r.kind = n.PRIVATE if self.private else n.REPLICATED
        r.cls = n.VOLATILE if self.private and self.changes != "never" else classes[self.changes]
        r.flags = n.IN_WINDOW if self.private and self.changes == "window" else 0
        r.name, r.data, r.bytes = name, self.address, self.nbytes
        for i, size in enumerate(shape):
            r.shape[i] = size
        return name


def _size(dtype: str) -> int:
    return {"bool": 1, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8
