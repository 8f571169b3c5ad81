"""What the tests of adapters share: replicad.testing.conformance under the daemon of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import Daemon, Job, environment, imports, warm
from replicad.testing import conformance
from replicad.testing.conformance import Life, Report, Subject, Suite

#: Of whose subjects the lives fork from a process that has the file's imports, which take longer than what they train. They leave no thread, so that it can be forked.
FORKED = ("subject_accelerate", "subject_huggingface", "subject_idioms", "subject_lightning", "subject_logs", "subject_published")


class Forked(Suite):
    """A suite whose plain ranks fork as well."""

    def __init__(self, subject: type[Subject], first: tuple[str, ...], **given: Any) -> None:
        super().__init__(subject, **given)
        self._first = first

    def _ran(self, how: str, plan: Sequence[conformance.Break]) -> list[list[Life]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conformance, "ranks", self._ranks)
            return super()._ran(how, plan)

    def _ranks(self, program: str, call: Sequence[str], world: int, env: Mapping[str, str], timeout: float) -> None:
        path = self._folder / "plain.py"
        path.write_text(program)
        common = {**env, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(conformance.port())}
        forks = warm(dict(env), self._first)
        ranks = [Job.of(forks.launch([], [sys.executable, str(path), *call], {**common, "RANK": str(r), "LOCAL_RANK": str(r)}, self._folder), f"plain {r}") for r in range(world)]
        for rank in ranks:
            rank.done()


def suite(subject: type[Subject], world: int, daemon: Daemon, folder: Path, said: list[str] | None = None, flags: tuple[str, ...] = ()) -> Suite:
    """``said`` is given what each job printed, ``flags`` are the launcher's."""
    first = imports(Path(sys.modules[subject.__module__].__file__ or "")) if subject.__module__ in FORKED else ()

    def launch(program: str, args: Sequence[str], world: int) -> None:
        text = daemon.run(program, *args, world=world, flags=flags, imports=first).done()
        if said is not None:
            said.append(text)

    given: dict[str, Any] = {"world": world, "folder": folder, "launch": launch, "env": environment()}
    return Forked(subject, first, **given) if first else Suite(subject, **given)


#: Has the ranks wait in a step of their first epoch until one of them is lost.
_WAITS = """import replicad.session


def _made(self, *args, _make=replicad.session.Session.__init__, **more):
    _make(self, *args, **more)
    self.reached = lambda place, at: (place, at) == ("window", STEP) and self.order.epoch == 1 and self.rank.wait_fence()


replicad.session.Session.__init__ = _made
"""


def waiting(program: str, step: int) -> str:
    """The program with ranks that wait in this step for the loss of one: without, they may be through with all steps by the time of a kill from outside."""
    assert "\nimport replicad\n" in program
    return program.replace("\nimport replicad\n", "\nimport replicad\n" + _WAITS.replace("STEP", str(step)), 1)


def equal(report: Report) -> None:
    """Prints the table, and its rows into the file that `make frameworks-test` names; every row has to be equal."""
    print(report)
    if path := os.environ.get("CONFORMANCE_TABLE"):
        with open(path, "a") as out:
            out.write("".join(line + "\n" for line in str(report).splitlines()[2:]))
    assert report.equal, f"\n{report}"
