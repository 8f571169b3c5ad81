"""What Hugging Face's Trainer writes for TensorBoard, over restarts: its callback makes a folder in each process, and rows of steps that are done again would be there twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from transformers.integrations import TensorBoardCallback

__all__ = ["Boards"]

#: The state is as long on the ranks that write nothing, and in the first step.
ROOM = 1024


class Boards:
    """The TensorBoard callbacks of a trainer."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def _all(self) -> Iterator[Any]:
        return (c for c in self._trainer.callback_handler.callbacks if isinstance(c, TensorBoardCallback))

    def state(self) -> list[str]:
        """Their folders."""
        return [(c.logging_dir or "").ljust(ROOM) for c in self._all()]

    def load(self, folders: list[str]) -> None:
        """A process goes on in the folder of the one before it; one that the program names (TENSORBOARD_LOGGING_DIR) stays."""
        for c, folder in zip(self._all(), folders, strict=False):
            if c.logging_dir is None and folder.strip():
                c.logging_dir = folder.strip()

    def goes_on(self, step: int) -> None:
        """Has TensorBoard leave out what earlier files have from this step on: the mark of a restart, as SummaryWriter(purge_step=) writes it."""
        for c in self._all():
            writer = c.tb_writer and c.tb_writer._get_file_writer()
            with contextlib.suppress(ImportError):
                from torch.utils.tensorboard.writer import Event, SessionLog  # type: ignore[attr-defined]

                if hasattr(writer, "add_event"):
                    writer.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
