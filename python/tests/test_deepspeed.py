"""DeepSpeed's engine under its adapter, judged by replicad.testing.conformance; its refusals, what it does without a launcher, and what killed builds leave."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed", reason="deepspeed is missing: `make frameworks-test` has it")

import subject_deepspeed as subjects
from conforming import equal, suite
from conftest import Daemon
from replicad.testing.conformance import Break

AUTO = ("--groups", "auto")
#: A step each. An update has two micro-batches; every second one is evaluated.
KILLED = (Break("forward", 1), Break("second forward", 2, 1), Break("backward", 3), Break("evaluation", 4, 1), Break("step", 6), Break("log", 7, 1), Break("log", 8))
SOME = (Break("second forward", 3, 1), Break("step", 5), Break("evaluation", 6, 1))


@pytest.mark.parametrize("kind", [subjects.Zero0, subjects.Zero1, subjects.Zero2, subjects.Zero3], ids=lambda kind: kind.__name__)
def test_an_engine_goes_on_as_if_nothing_had_been(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    equal(suite(kind, 2, daemon, tmp_path, flags=AUTO).through("kill", *KILLED))


@pytest.mark.long
@pytest.mark.parametrize("kind", [subjects.Whole1, subjects.Whole2, subjects.Whole3], ids=lambda kind: kind.__name__)
def test_of_three_ranks(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    equal(suite(kind, 3, daemon, tmp_path, flags=AUTO).through("kill", *SOME))


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [subjects.Copied, subjects.Accumulates, subjects.Frozen, subjects.Offloads, subjects.Offloads3, subjects.Unmanaged], ids=lambda kind: kind.__name__
)
def test_other_ways_to_train(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    equal(suite(kind, 2, daemon, tmp_path, flags=AUTO).through("kill", *SOME))


def test_weights_that_nobody_makes_anew_are_found(daemon: Daemon, tmp_path: Path) -> None:
    report = suite(subjects.Stale, 2, daemon, tmp_path, flags=AUTO).through("kill", Break("second forward", 3, 1))
    assert not report.equal, f"the suite finds nothing where the weights stay what they were:\n{report}"


@pytest.mark.parametrize("kind", [subjects.Zero1, subjects.Zero2, subjects.Zero3], ids=lambda kind: kind.__name__)
def test_a_fault_in_the_process_is_borne_by_new_processes(kind: type[subjects.Kept], daemon: Daemon, tmp_path: Path) -> None:
    """DeepSpeed holds process groups in its engine, its optimizer and its modules, and a restart takes them down."""
    said: list[str] = []
    equal(suite(kind, 2, daemon, tmp_path, said, AUTO).through("raise", Break("second forward", 3, 1), Break("step", 5)))
    assert "hold process groups that were taken down when the block ended, and take no others. This process ends, and a new one takes its place" in said[0]
