"""Which gradients there are when a step's forward begins, as an undisturbed run has them.

``zero_grad(set_to_none=False)`` leaves zeros. A parameter that takes no part in the next step then has a gradient all the same, and its optimizer steps it: moments decay, and
momentum and weight decay move the parameter. In a new process it would have no gradient, and be left out. So the copy says which parameters have one where the loop keeps them,
and a load puts zeros there. Whether it keeps them is seen from one gradient of each parameter group: at the beginning of a step it is the same tensor as at the end of the last.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from .._core.capsule import Opaque
from .optimizers import part
from .tensors import some

__all__ = ["Gradients"]

#: What the copy says of a parameter: it will have no gradient, a dense one of zeros, or a sparse one; or there is one, and whether it stays is not known before the second step.
NONE, DENSE, SPARSE, UNKNOWN = range(4)
_GRAD = operator.attrgetter("grad")


class Gradients:
    """The gradients of the parameters that optimizers step."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[torch.Tensor, weakref.ref[torch.Tensor]]] = {}  # by group: a parameter with the gradient that the last step left, which is not held here
        self._stays: dict[int, bool] = {}  # by group: whether a gradient was there still when the next step began
        self._seen: dict[int, tuple[list[bool], bytes]] = {}  # by group: which parameters had one, and of which kind they are
        self._unknown: dict[int, list[torch.Tensor]] = {}  # by group: those that had one in the step that was loaded, if nobody knew then whether it stays
        self._lacked: dict[int, list[torch.Tensor]] = {}  # by group: those of them that had none in the next step
        self._looked = False  # a step has begun: what there was before is dropped at resume

    def ended(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """A step has ended."""
        first = ((i, next((p for p in params if p.grad is not None), None)) for i, params in enumerate(_groups(optimizers)))
        self._left = {i: (p, weakref.ref(p.grad)) for i, p in first if p is not None and p.grad is not None}

    def look(self, say: Callable[[str, str], None], step: int, optimizers: Iterable[torch.optim.Optimizer], names: Mapping[int, str]) -> None:
        """When the next step begins: whether gradients were kept since the last one. Names those that a process began without, where they turn out to be kept."""
        self._stays |= {i: p.grad is not None and p.grad is left() for i, (p, left) in self._left.items()}
        if lacked := [p for i, params in self._lacked.items() if self._stays.get(i) for p in params]:
            where = {id(p): f"param.{i}.{k}" for i, params in enumerate(_groups(optimizers)) for k, p in enumerate(params)}
            say(
                "gradients",
                f"{some([names.get(id(p), where.get(id(p), '?')) for p in lacked])} had no gradient in step {step - 1}, with which this process began, and a gradient of zeros in "
                "a run without a restart: the loop keeps gradients (zero_grad(set_to_none=False)), which nobody knows before a job's second step. Leave set_to_none at True",
            )
        self._looked = True
        self._lacked = {i: lacking for i, params in self._unknown.items() if (lacking := [p for p in params if p.grad is None])}
        self._unknown = {}

    def value(self, optimizers: Iterable[torch.optim.Optimizer]) -> Opaque:
        """A byte for each parameter, so that its length stays: when the next step begins, as :meth:`look` has found."""
        return Opaque(b"".join(self._kinds(i, params) if self._looked and self._stays.get(i, True) else bytes(len(params)) for i, params in enumerate(_groups(optimizers))))

    def _kinds(self, group: int, params: list[torch.Tensor]) -> bytes:
        """Looked at anew where other parameters have a gradient than the last time."""
        there = [grad is not None for grad in map(_GRAD, params)]
        was, kinds = self._seen.get(group, ([], b""))
        if there != was:
            kinds = bytes(map(_kind, params))
            self._seen[group] = there, kinds
        return kinds if group in self._stays else bytes(UNKNOWN if kind else NONE for kind in kinds)

    def set(self, value: bytes, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """The inverse of :meth:`value`, where no parameter has a gradient."""
        self._left, self._stays, self._seen, self._unknown, self._lacked, self._looked = {}, {}, {}, {}, {}, False
        at = 0
        for i, params in enumerate(_groups(optimizers)):
            of = list(zip(params, value[at : at + len(params)], strict=False))
            at += len(params)
            self._unknown[i] = [p for p, kind in of if kind == UNKNOWN]
            for p, kind in of:
                if kind in (DENSE, SPARSE):
                    self._stays[i] = True
                    p.grad = torch.zeros_like(p, layout=torch.sparse_coo) if kind == SPARSE else torch.zeros_like(p)


def _groups(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[list[torch.Tensor]]:
    for o in optimizers:
        yield from (group["params"] for group in part(o).param_groups)


def _kind(p: torch.Tensor) -> int:
    """FSDP1 keeps gradients of its own, and what is of another type than its parameter is not for a load to make."""
    grad = p.grad
    if grad is None or grad.dtype != p.dtype or getattr(p, "_fsdp_flattened", False) or hasattr(p, "_is_flat_param"):
        return NONE
    return SPARSE if grad.layout == torch.sparse_coo else DENSE if grad.layout == torch.strided else NONE
