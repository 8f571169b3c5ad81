"""Tensors whose copies have another floating-point type than they have in the program.

A copy of another type is refused by name; what is to be converted when it is loaded, the program says (``kept_dtype`` of a
:class:`replicad.Session`). Such a tensor has a stage in host memory (:mod:`replicad._torch.staging`) of the type that the job keeps, so all
digests are of that type's bytes: they are verified when the stage is loaded, and the values are converted after that, on the way from
the stage to the tensor. The copies of every later step are of the kept type, too, which therefore must hold each value of
the tensor's own: a restart is then as exact as without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

import torch

from ..errors import Invalid
from .tensors import Leaf

__all__ = ["hint", "holds", "kept_dtypes", "name", "rounded", "too_large"]

#: Floating-point types by the names that daemons have for them, safetensors'.
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
#: How a daemon says of a tensor that it is of another type.
_OTHER = re.compile(r'"(?P<name>[^"]+)" is (?P<live>\w+), was (?P<kept>\w+)')
_FINER = "To go on with finer values than the copy has begin a new job from its durable generation's files (docs/pytorch-data.md)"


def holds(kept: torch.dtype, live: torch.dtype) -> bool:
    """Whether a floating-point type has every value of another one: as fine steps, as large and as small numbers. Of types that daemons have
    no name for none has another's: they may lack -0 or infinity."""
    if kept not in _TYPES.values():
        return kept == live
    try:
        k, x = torch.finfo(kept), torch.finfo(live)
        return k.eps <= x.eps and k.max >= x.max and k.smallest_normal * k.eps <= x.smallest_normal * x.eps
    except NotImplementedError:  # two numbers in a byte
        return False


def kept_dtypes(leaves: Iterable[Leaf], asked: Mapping[str, torch.dtype]) -> dict[str, torch.dtype]:
    """The type in which each tensor that is to be converted is kept, by name. ``asked`` has types by pattern of names, as :mod:`fnmatch`
    has them, of which the first that fits counts; tensors that are no floating-point numbers are left as they are. :class:`Invalid` for a pattern that fits
    no tensor, and for a type that would round a tensor's values."""
    if not isinstance(asked, Mapping):
        raise Invalid(f"kept_dtype: want a dict of patterns of names and types, not {asked!r}")
    for pattern, kept in asked.items():
        if not isinstance(pattern, str):
            raise Invalid(f"kept_dtype: {pattern!r}: want a pattern of names, as 'model.*'")
        if not (isinstance(kept, torch.dtype) and kept.is_floating_point):
            raise Invalid(f"kept_dtype: {pattern!r}: want a floating-point torch.dtype, not {kept!r}")
    found = [x for x in leaves if x.local.dtype.is_floating_point]
    for pattern in asked:
        if not any(_fits(x.name, pattern) for x in found):
            first = f"; the first is {found[0].name!r}" if found else ""
            raise Invalid(f"kept_dtype: no floating-point tensor of this session has a name like {pattern!r}{first}")
    out = {}
    for leaf in found:
        live = leaf.local.dtype
        kept = next((asked[pattern] for pattern in asked if _fits(leaf.name, pattern)), live)
        if not holds(kept, live):
            raise Invalid(f"kept_dtype: {leaf.name} is {name(live)} here, and {name(kept)} does not hold all of its values: its copies would be rounded at each step. {_FINER}")
        if kept != live:
            out[leaf.name] = kept
    return out


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def hint(refusal: str) -> str:
    """What to add to a daemon's refusal that names a tensor of another floating-point type: how to have it converted."""
    found = _OTHER.search(refusal)
    live, kept = (_TYPES.get(found[k]) for k in ("live", "kept")) if found else (None, None)
    if found is None or live is None or kept is None:
        return ""
    if not holds(kept, live):
        return f". {_FINER}"
    end = re.fullmatch(r"[0-9a-f]{16}~(.*)", found["name"])  # of a long name, which nothing but the end is known of here
    pattern = f"*{end[1]}" if end else found["name"]
    return f'. To have the copy\'s values rounded at load: Session(kept_dtype={{"{pattern}": {kept}}}), or a pattern of names (docs/pytorch-data.md)'


def rounded(converted: Mapping[tuple[torch.dtype, torch.dtype], list[str]]) -> Iterator[str]:
    """What is logged of a load: ``converted`` has the names of tensors by the type of their copies and their own."""
    for (kept, live), names in converted.items():
        more = ", ..." if len(names) > 8 else ""
        yield f"{len(names)} tensors are {name(kept)} in the copies and {name(live)} here, as kept_dtype asks: rounded at load ({', '.join(names[:8])}{more})"


def too_large(overflown: Mapping[str, torch.dtype]) -> str:
    """Why a load is refused whose values are too large for the tensors' own types, which ``overflown`` has by name; empty if there are none."""
    if not overflown:
        return ""
    names, here = list(overflown), ", ".join(sorted(set(map(name, overflown.values()))))
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return (
        f"kept_dtype: {', '.join(names[:4])}{more} has finite values in the copy that are too large for {here}: load them as the type that they are kept in, "
        "or as one that has as large values (bfloat16 for float32)"
    )


def name(dtype: torch.dtype) -> str:
    """A type as messages name it."""
    return str(dtype).removeprefix("torch.")
