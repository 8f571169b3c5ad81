"""What is registered of a model and an optimizer, read and loaded by address as the C client does it."""

from __future__ import annotations

import ctypes
from typing import Any

from replicad._torch.state import clean, materialise, model_leaves, optimizer_leaves, optimizer_values, regions, set_optimizer_values
from replicad._torch.wrappers import reshard


class Registered:
    """Finds the regions of a model and its optimizer, as a session does."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer
        reshard([model])
        self.names = {id(p): f"model.{clean(model, k)}" for k, p in model.named_parameters()}
        leaves = list(model_leaves("model", model, lambda _: False))
        materialise(optimizer)
        leaves += optimizer_leaves("optim", optimizer, self.names)
        self.changes = {x.name: x.changes for x in leaves}
        self.regions = regions(leaves)

    @property
    def table(self) -> list[tuple[Any, ...]]:
        """What two ranks of a group must have in common."""
        return [(r.name, r.nbytes, r.shape, r.dtype, r.changes, r.private) for r in self.regions]

    def read(self) -> tuple[dict[str, bytes], Any]:
        """What a capture takes now."""
        return {r.name: ctypes.string_at(r.address, r.nbytes) for r in self.regions}, optimizer_values(self.optimizer, self.names)

    def load(self, kept: tuple[dict[str, bytes], Any]) -> None:
        """What a resume does with it."""
        assert kept[0].keys() == {r.name for r in self.regions}
        for r in self.regions:
            ctypes.memmove(r.address, kept[0][r.name], r.nbytes)
        reshard([self.model])
        set_optimizer_values(self.optimizer, self.names, kept[1])
