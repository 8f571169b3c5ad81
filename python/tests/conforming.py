"""What the tests of adapters share: replicad.testing.conformance under the daemon of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from conftest import Daemon, environment, imports
from replicad.testing.conformance import Report, Subject, Suite

#: Of whose subjects the lives fork from a process that has the file's imports, which take longer than what they train. They leave no thread, so that it can be forked.
FORKED = ("subject_accelerate", "subject_huggingface", "subject_lightning")


def suite(subject: type[Subject], world: int, daemon: Daemon, folder: Path, said: list[str] | None = None, flags: tuple[str, ...] = ()) -> Suite:
    """``said`` is given what each job printed, ``flags`` are the launcher's."""
    first = imports(Path(sys.modules[subject.__module__].__file__ or "")) if subject.__module__ in FORKED else ()

    def launch(program: str, args: Sequence[str], world: int) -> None:
        text = daemon.run(program, *args, world=world, flags=flags, imports=first).done()
        if said is not None:
            said.append(text)

    return Suite(subject, world=world, folder=folder, launch=launch, env=environment(OMP_NUM_THREADS="1"))


def equal(report: Report) -> None:
    """Prints the table, and its rows into the file that `make frameworks-test` names; every row has to be equal."""
    print(report)
    if path := os.environ.get("CONFORMANCE_TABLE"):
        with open(path, "a") as out:
            out.write("".join(line + "\n" for line in str(report).splitlines()[2:]))
    assert report.equal, f"\n{report}"
