"""The judgement of replicad.testing.conformance, without any process: what counts as the same run, and what does not."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from replicad.testing.conformance import Report, Row, Run, judge, lives, port


def events(*steps: int, loss: str = "1.0") -> list[Any]:
    """The lines of steps: each has a log, and every second one an evaluation."""
    lines: list[Any] = []
    for n in steps:
        lines += [["step", n, {}], ["log", n, {"loss": loss}]]
        lines += [["evaluation", n, {}]] if n % 2 == 0 else []
    return lines


def text(*parts: Any) -> str:
    return "".join(json.dumps(line) + "\n" for line in parts)


PLAIN = lives(text("life", *events(1, 2, 3, 4), {"weights": "a"}))


def test_a_run_without_faults_is_itself() -> None:
    assert judge(PLAIN, PLAIN) == {}


def test_steps_may_be_done_twice() -> None:
    broken = lives(text("life", *events(1, 2, 3), "broken 0", "life", *events(2, 3, 4), {"weights": "a"}))
    assert judge(PLAIN, broken) == {}


def test_a_life_may_end_before_its_first_line() -> None:
    broken = lives(text("life", "broken 0", "life", "life", *events(1, 2, 3, 4), {"weights": "a"}))
    assert judge(PLAIN, broken) == {}


def test_a_line_that_nobody_did_again_is_a_gap() -> None:
    first = [*events(1), ["step", 2, {}], ["log", 2, {"loss": "1.0"}]]  # the evaluation is broken
    broken = lives(text("life", *first, "broken 0", "life", *events(3, 4), {"weights": "a"}))
    assert judge(PLAIN, broken) == {0: "step 3 comes first, and evaluation 2 was to come"}


def test_another_value_is_named_with_what_it_was() -> None:
    broken = lives(text("life", *events(1, 2), "broken 0", "life", *events(3, 4, loss="2.0"), {"weights": "a"}))
    assert judge(PLAIN, broken) == {0: "log 3 loss=2.0 for log 3 loss=1.0"}


def test_another_value_in_the_first_line() -> None:
    broken = lives(text("life", *events(1), ["step", 2, {}], "broken 0", "life", ["log", 2, {"loss": "2.0"}], *events(3, 4), {"weights": "a"}))
    assert judge(PLAIN, broken) == {0: "log 2 loss=2.0 for log 2 loss=1.0"}


def test_only_what_differs_of_a_line_is_said() -> None:
    plain = lives(text("life", ["log", 1, {"a": "1", "b": "2"}], {}))
    assert judge(plain, lives(text("life", ["log", 1, {"a": "1", "b": "3", "c": "4"}], {}))) == {0: "log 1 b=3 c=4 for log 1 b=2"}


def test_the_fault_is_named_whose_life_differs() -> None:
    broken = lives(text("life", *events(1), "broken 0", "life", *events(2), "broken 1", "life", *events(3, 4, loss="2.0"), {"weights": "a"}))
    assert list(judge(PLAIN, broken)) == [1]


def test_a_run_that_ends_early_and_one_that_goes_on() -> None:
    assert judge(PLAIN, lives(text("life", *events(1, 2, 3), {"weights": "a"}))) == {0: "the run ended before step 4"}
    assert judge(PLAIN, lives(text("life", *events(1, 2, 3, 4, 5), {"weights": "a"}))) == {0: "step 5 for the end"}


def test_digests_of_the_end() -> None:
    assert judge(PLAIN, lives(text("life", *events(1, 2, 3, 4), {"weights": "b"}))) == {0: "in the end weights differ"}


def test_what_a_session_names_is_a_difference(tmp_path: Path) -> None:
    for due, want in (((), {0: "noticed 0 names=['model.hidden'] for the end"}), (("model.hidden",), {})):
        folder = tmp_path / str(len(due))
        folder.mkdir()
        run = Run(folder, 0, 1, "kill")
        run.life()
        for name, step, values in events(1, 2, 3, 4):
            run._write([name, step, values])
        run.noticed({"model.hidden": "it is in no copy"}, due)
        run._write({"weights": "a"})
        assert judge(PLAIN, lives((folder / "rank0").read_text())) == want


def test_the_table() -> None:
    report = Report([Row("x", 2, "kill", "forward 2")]) + Report([Row("x", 2, "raise", "save 4", "rank 0: step 5 for the end")])
    assert not report.equal
    assert str(report).splitlines()[2:] == ["| x | 2 | forward 2 | kill | yes |", "| x | 2 | save 4 | raise | NO: rank 0: step 5 for the end |"]


def test_a_port_for_ranks_is_none_that_others_are_given() -> None:
    """Between the moment at which it is chosen and the one at which rank 0 listens there, the kernel gives such ports to whoever asks."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if low <= 10_000 and high == 65_535:
        pytest.skip("the kernel hands out every port here")
    assert not any(low <= port() <= high for _ in range(20))


# -- what was run ---------------------------------------------------------------------------------------------------------------


def tool() -> Any:
    """python/tools/ran.py."""
    spec = importlib.util.spec_from_file_location("ran", ROOT / "python" / "tools" / "ran.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_that_are_run_by_hand_were_run_with_what_is_here() -> None:
    ran = tool()
    rows = ran.said()
    assert list(rows) == list(ran.ROWS)
    old = [row for row, (of, _) in rows.items() if of != ran.digest(row)]
    assert not old, f"docs/conformance.md: what {', '.join(old)} was run with has changed since: run it as the page says, then python3 python/tools/ran.py {' '.join(old)}"


def test_another_file_or_version_is_another_digest(tmp_path: Path) -> None:
    ran = tool()
    files, name, _ = ran.ROWS["trl"]
    for file in [*files, f"python/requirements-{name}.in"]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    was = ran.digest("trl", tmp_path)
    assert was == ran.digest("trl")
    pins = tmp_path / f"python/requirements-{name}.in"
    pins.write_text(re.sub(r"^trl==.*$", "trl==0.0.1", pins.read_text(), flags=re.M))
    other = ran.digest("trl", tmp_path)
    (tmp_path / files[0]).write_text("")
    assert len({was, other, ran.digest("trl", tmp_path)}) == 3


def test_no_test_is_left_out_for_a_package_that_the_tests_install() -> None:
    """numpy and torch are looked for: the default environment of a clone without torch has neither."""
    here = {re.split(r"==|;", line)[0] for line in (ROOT / "python" / "requirements-torch.in").read_text().splitlines() if "==" in line and not line.startswith("#")} - {
        "torch",
        "numpy",
    }
    assert "lightning" in here
    skipped = {(file.name, of) for file in Path(__file__).parent.glob("*.py") for of in re.findall(r"importorskip\(\"(\w+)", file.read_text())}
    assert [(file, of) for file, of in sorted(skipped) if of in here] == []
