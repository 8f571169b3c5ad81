"""Lightning's loggers that write files, over restarts: a new process goes on in the folder of its run, and the rows of steps that are done again are there once.

A Trainer makes its loggers long before a session has resumed, and ``CSVLogger`` deletes the rows that it finds. So loggers are opened here, before the Trainer does it. A run
writes a mark into the folder that it was given: a process of the same job finds its folder by it. Whether the job has a state is known later (:meth:`Logs.goes_on`).
"""

from __future__ import annotations

import contextlib
import csv
import functools
import logging
import os
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.fabric.loggers import csv_logs
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn

from ..alone import launched

__all__ = ["Logs", "opened_by"]

log = logging.getLogger("replicad")

#: The file that says whose a folder is: the job's name, and a number that no other run of that name has.
MARK = "replicad.run"


#: Loggers that have chosen their folders by themselves.
_CHOSEN: weakref.WeakSet[Any] = weakref.WeakSet()


class Logs:
    """The loggers of the trainer that fits now. On ranks that write none of them it is idle."""

    def __init__(self) -> None:
        self.trainer: Trainer
        self._run = uuid.uuid4().hex
        self._tables: dict[int, _Table] = {}  # by the logger's number
        self._boards: list[_Board] = []
        self._marked: list[Any] = []  # loggers that were given no folder
        self._loaded: Mapping[str, Any] | None = None

    # -- before the Trainer makes them ---------------------------------------------------------------------------------------

    def open(self, trainer: Trainer) -> None:
        """Has them be there, in the folders of this job, with what the folders have."""
        self.trainer, self._tables, self._boards, self._marked, self._loaded = trainer, {}, [], [], None
        job = os.environ.get("REPLICAD_JOB", "")
        if not (trainer.is_global_zero and job):
            return
        for i, logger in enumerate(trainer.loggers):
            if isinstance(logger, (CSVLogger, TensorBoardLogger)):
                if logger._version is None or logger in _CHOSEN:
                    self._find(logger, job)
                self._open(i, logger)

    def _find(self, logger: Any, job: str) -> None:
        """The folder with the job's mark, or the next one. One that has its writer stays where it is."""
        self._marked.append(logger)
        if logger._experiment is not None:
            return
        logger._version = logger._get_next_version()
        for version in reversed(range(logger._version)):
            found = _mark(logger, version)
            if found[:1] == [job] and found[1:]:
                logger._version, self._run = version, found[1]
                break

    def _open(self, i: int, logger: Any) -> None:
        with _deletes_nothing():
            logger.experiment  # noqa: B018 (it is made)
        if logger in self._marked:
            with logger._fs.open(os.path.join(_folder(logger), MARK), "w") as f:
                f.write(f"{os.environ['REPLICAD_JOB']}\n{self._run}\n")
        if isinstance(logger, CSVLogger):
            self._tables[i] = _Table(logger)
        else:
            self._boards.append(_Board(logger))

    # -- once the session has resumed --------------------------------------------------------------------------------------------

    def goes_on(self, step: int) -> None:
        """The job has a state, of which ``step`` is the next row's: what was written behind it goes."""
        state, trainer, moved = self._loaded, self.trainer, {}
        if state is None:
            return
        found = [(i, o, v) for i, o in enumerate(trainer.loggers) if o in self._marked and state["run"] != self._run and (v := self._where(o, state["run"])) is not None]
        if found:  # a program with several fits has several folders
            self._run = state["run"]
        for i, logger, version in found:
            moved[_folder(logger)] = self._moves(i, logger, version)
        for i, table in self._tables.items():
            rows = int(state["rows"][i]) if i < len(state["rows"]) else 0
            if table.logger not in self._marked or state["run"] == self._run:
                table.cut(rows)
            elif rows:
                log.warning(
                    "replicad: the log goes on in %s: what the run had written before, %d rows, lies in another folder, or where it ran before", _folder(table.logger), rows
                )
        for board in self._boards:
            board.cut(step)
        self._follow(moved)

    def begins(self) -> None:
        """The job has no state yet, or that of its beginning: what lies in a folder is of a run before. A folder that was found here is left to that, and one that the program has
        named is emptied, as Lightning does."""
        trainer, state = self.trainer, self._loaded
        moved = {}
        if state is None or state["run"] == self._run:  # else the process before this one has moved already
            earlier = [(i, o) for i, o in enumerate(trainer.loggers) if any(o is m for m in self._marked) and (self._before(i) if state is None else int(state["rows"][i]))]
            if earlier:
                self._run = uuid.uuid4().hex
            for i, logger in earlier:
                moved[_folder(logger)] = self._moves(i, logger, logger._get_next_version())
        for table in self._tables.values():
            table.cut(0)
        if state is not None:
            for board in self._boards:
                board.cut(0)
        self._follow(moved)

    def _follow(self, moved: dict[str, str]) -> None:
        """On all ranks: ModelCheckpoint has asked where to save already."""
        for old, new in dict(self.trainer.strategy.broadcast(moved)).items():
            for c in self.trainer.checkpoint_callbacks:
                folder = str(getattr(c, "dirpath", None) or "")
                if folder == old or folder.startswith(old + os.sep):
                    c.dirpath = new + folder.removeprefix(old)

    @staticmethod
    def _where(logger: Any, run: str) -> int | None:
        """The folder of a run."""
        return next((version for version in range(logger._get_next_version()) if _mark(logger, version)[1:] == [run]), None)

    def _moves(self, i: int, logger: Any, version: int) -> str:
        self._boards = [b for b in self._boards if b.logger is not logger]
        logger._experiment, logger._version = None, version
        self._open(i, logger)
        return _folder(logger)

    def _before(self, i: int) -> int:
        """How many rows its folder had before this process, or whether it had files."""
        return self._tables[i].rows if i in self._tables else sum(b.earlier for b in self._boards if b.logger is self.trainer.loggers[i])

    # -- a step is over ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """How many rows there are, all of them in the files."""
        for board in self._boards:
            board.flush()
        for table in self._tables.values():
            table.flush()
        rows = [self._before(i) for i in range(len(self.trainer.loggers))]
        return {"run": self._run, "rows": torch.tensor(rows, dtype=torch.int64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Of a process before this one."""
        self._loaded = dict(state)


class _Table:
    """A CSVLogger's file."""

    def __init__(self, logger: CSVLogger) -> None:
        self.logger, self._writer = logger, logger.experiment
        vars(self._writer).pop("save", None)  # of a run of the block before this one
        self._plain = self._writer.save
        self._writer.save = self._save  # Lightning's own saves count as well
        self.rows = len(self._read()[1])  #: in the file

    def _read(self) -> tuple[list[str], list[list[str]]]:
        path, fs = self._writer.metrics_file_path, self._writer._fs
        if not fs.isfile(path):
            return [], []
        with fs.open(path, "r", newline="") as f:
            lines = list(csv.reader(f))
        return (lines[0], lines[1:]) if lines else ([], [])

    def flush(self) -> None:
        """Writes the rows that there are."""
        n = len(self._writer.metrics)
        csv_logs._ExperimentWriter.save(self._writer)
        self.rows += n

    def _save(self) -> None:
        self.flush()
        self._plain()  # hparams

    def cut(self, rows: int) -> None:
        """Leaves the first ``rows`` of them."""
        names, lines = self._read()
        path, fs = self._writer.metrics_file_path, self._writer._fs
        if len(lines) < rows:
            log.warning("replicad: %s has %d rows, and the run had written %d: the others lie where it ran before", path, len(lines), rows)
        self._writer.metrics, self._writer.metrics_keys = [], names
        self.rows = min(rows, len(lines))
        if self.rows == 0:
            self._writer.metrics_keys = []
            if fs.isfile(path):
                fs.rm_file(path)
        elif len(lines) > rows:
            with fs.open(path + ".cut", "w", newline="") as f:
                writer = csv.writer(f)
                writer.writerow(names)
                writer.writerows(lines[:rows])
            fs.mv(path + ".cut", path)


class _Board:
    """A TensorBoardLogger's writer, a file for each process."""

    def __init__(self, logger: TensorBoardLogger) -> None:
        self.logger = logger
        fs, folder = logger._fs, _folder(logger)
        files = [name for entry in fs.listdir(folder) if "tfevents" in (name := os.path.basename(entry["name"]))] if fs.isdir(folder) else []
        self.earlier = len(files) > 1  #: than this process's own
        self._dirty = True
        events: Any = getattr(logger.experiment._get_file_writer(), "event_writer", None)
        self._watched = hasattr(events, "add_event")
        if self._watched:
            vars(events).pop("add_event", None)
            events.add_event = functools.partial(self._adds, events.add_event)

    def _adds(self, add: Callable[[Any], None], event: Any) -> None:
        self._dirty = True
        add(event)

    def flush(self) -> None:
        """A process that is killed loses what it has not written."""
        if self._dirty:
            self.logger.experiment.flush()
            self._dirty = not self._watched

    def cut(self, step: int) -> None:
        """Has TensorBoard leave out what earlier files have from this step on: the mark of a restart, as SummaryWriter(purge_step=) writes it."""
        from torch.utils.tensorboard.writer import Event, SessionLog  # type: ignore[attr-defined]

        writer = self.logger.experiment._get_file_writer()
        if hasattr(writer, "add_event"):
            writer.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))


def _folder(logger: Any) -> str:
    return str(logger.log_dir)


def _mark(logger: Any, version: int) -> list[str]:
    """What a folder's mark says, in lines."""
    path = os.path.join(str(logger.root_dir), f"version_{version}", MARK)
    with contextlib.suppress(OSError):
        with logger._fs.open(path, "r") as f:
            return str(f.read()).split("\n")[:2]
    return []


@contextlib.contextmanager
def _deletes_nothing() -> Iterator[None]:
    """Meanwhile a CSVLogger leaves the rows that it finds."""
    kind: Any = csv_logs._ExperimentWriter
    plain = kind._check_log_dir_exists
    kind._check_log_dir_exists = lambda writer: None
    try:
        yield
    finally:
        kind._check_log_dir_exists = plain


def _noted(choose: Callable[[Any], int]) -> Callable[[Any], int]:
    """Nothing else tells a folder that a logger has chosen from one that it was given."""

    @functools.wraps(choose)
    def chosen(logger: Any) -> int:
        _CHOSEN.add(logger)
        return choose(logger)

    return chosen


def opened_by(logs: Callable[[Any], Logs | None]) -> None:
    """Has the loggers of a trainer that fits under a launcher opened by what ``logs`` says of its callbacks, before the Trainer opens them: nothing of a callback is called
    earlier than that."""
    plain = call._call_setup_hook
    for kind in (CSVLogger, TensorBoardLogger):
        kind._get_next_version = _noted(kind._get_next_version)

    @functools.wraps(plain)
    def setup(trainer: Trainer) -> None:
        if trainer.state.fn == TrainerFn.FITTING and launched():
            for found in filter(None, map(logs, trainer.callbacks)):
                found.open(trainer)
        plain(trainer)

    call._call_setup_hook = setup
