"""Limits of waits follow what the machine gives."""

from __future__ import annotations

import pytest

from pace import Limit, patient, slowed


@pytest.mark.parametrize(("line", "by"), [("0.10 3 4 1/99 5", 1.0), ("5.00 3 4 1/99 5", 2.5), ("0.10 3 4 8/99 5", 4.0), ("900 3 4 8/99 5", 10.0)])
def test_what_a_machine_gives(line: str, by: float) -> None:
    assert slowed(line, 2) == by


def test_a_second_of_a_busy_machine_counts_less() -> None:
    limit = Limit(60, "a line", began=0)
    assert limit.passes(29, 1.0) == "" and limit.left == 31
    assert limit.passes(49, 4.0) == "49 s: waits for a line; a core has 4.0 threads to run, and 104 s are left at that"
    assert limit.passes(78, 4.0) == "" and limit.left > 0
    assert limit.passes(153, 4.0).endswith("0 s are left at that") and limit.left <= 0


def test_a_limit_that_is_set_once() -> None:
    assert 600.0 <= patient(300.0) <= 3000.0
