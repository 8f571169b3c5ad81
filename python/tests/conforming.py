"""What the tests of adapters share: replicad.testing.conformance under the daemon of the tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from conftest import Daemon, environment
from replicad.testing.conformance import Report, Subject, Suite


def suite(subject: type[Subject], world: int, daemon: Daemon, folder: Path, said: list[str] | None = None, flags: tuple[str, ...] = ()) -> Suite:
    """``said`` is given what each job printed, ``flags`` are the launcher's."""

    def launch(program: str, args: Sequence[str], world: int) -> None:
        text = daemon.run(program, *args, world=world, flags=flags).done()
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
