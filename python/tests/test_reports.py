"""What `make reports` says of programs that people reported: its rules, and some of its rows."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")

from conftest import ROOT, Daemon, Job, launched

FOLDER = ROOT / "examples" / "reports"
sys.path.insert(0, str(FOLDER))

import run

#: Rows that the tests run; `make reports` runs all of them.
FAST = [
    ("valrng LOOP=range", "evaluation:10"),
    ("nanskip LOOP=steps", "backward:17"),
    ("nanskip LOOP=range", "backward:15"),
    ("gan VAR=one LOOP=steps", "generator:7"),
    ("curriculum VAR=both LOOP=range", "backward:15"),
    ("plateau VAR=between LOOP=range", "after:8"),
]

GOOD = run.Run(0, "DIGEST 0 model=aa\n")
SAME, OTHER = "FAULT backward:9\nDIGEST 0 model=aa\n", "FAULT backward:9\nDIGEST 0 model=bb\n"
NOTICED = "replicad: model.1.bias changed between the end of step 3 and the next forward: a restart from step 3 would not have the change\n"
LAUNCHER = "replicad run: step 8 lacks model.1.bias (rank 0): a restart from it is not the same run; session.noticed says what to do\n"
RESUMED = "replicad: a restart would lack: the scheduler of optim: session.explain() says more\n"
REFUSED = "Traceback (most recent call last):\nreplicad.errors.Mismatch: model.1.bias is new: make it before the session\n"
ROW = run.Row("gan", "backward:9")
STRICT = run.Row("gan", "backward:9", said=run.AFTER)


@pytest.mark.parametrize(
    ("row", "straight", "hit", "kind", "text"),
    [
        (ROW, GOOD, run.Run(0, SAME), "equal", ""),
        (ROW, GOOD, run.Run(0, OTHER), "WRONG", "nobody said so"),
        (ROW, GOOD, run.Run(0, NOTICED + OTHER), "said", "at noticed: replicad: model.1.bias changed"),
        (ROW, GOOD, run.Run(0, OTHER + NOTICED), "WRONG", "nobody said so"),  # too late
        (ROW, GOOD, run.Run(0, "EXPLAINED False\n" + OTHER), "said", "at explain"),
        (ROW, GOOD, run.Run(0, "EXPLAINED True\n" + OTHER), "WRONG", "nobody said so"),
        (ROW, GOOD, run.Run(0, OTHER + LAUNCHER), "said", "at launcher: replicad run: step 8 lacks model.1.bias"),
        (STRICT, GOOD, run.Run(0, NOTICED + OTHER), "WRONG", "nothing said so at launcher and resume"),
        (STRICT, GOOD, run.Run(0, LAUNCHER + OTHER), "WRONG", "nothing said so at resume"),
        (STRICT, GOOD, run.Run(0, LAUNCHER + OTHER + RESUMED), "said", "at resume: replicad: a restart would lack"),
        (ROW, run.Run(1, REFUSED), run.Run(1, REFUSED), "refused", "model.1.bias is new"),
        (run.Row("zerosize", "backward:5", trains=True), run.Run(1, REFUSED), run.Run(1, REFUSED), "WRONG", "model.1.bias is new"),
        (ROW, run.Run(1, "RuntimeError: output with shape [1]\n"), GOOD, "WRONG", "the undisturbed run ended with status 1: RuntimeError"),
        (ROW, GOOD, run.Run(78, "FAULT backward:9\n" + REFUSED), "refused", "model.1.bias is new"),
        (ROW, GOOD, run.Run(5, NOTICED + "FAULT backward:9\n"), "said", "the hit run was given up, at noticed: replicad: model.1.bias changed"),
        (ROW, GOOD, run.Run(5, "FAULT backward:9\n" + NOTICED), "WRONG", "ended with status 5"),
        (ROW, GOOD, run.Run(None, "FAULT backward:9\n"), "WRONG", "the hit run has no end"),
        (ROW, GOOD, GOOD, "WRONG", "no fault came"),
        (run.Row("gan", "backward:9", world=2), GOOD, run.Run(0, SAME), "WRONG", "no digest of each rank"),
    ],
)
def test_verdicts(row: run.Row, straight: run.Run, hit: run.Run, kind: str, text: str) -> None:
    found = run.verdict(row, straight, hit)
    assert found.kind == kind
    assert text in found.text


def test_a_control_row_must_be_wrong() -> None:
    assert run.Verdict("WRONG").wrong(False)
    assert run.Verdict("equal").wrong(True)
    assert not run.Verdict("WRONG").wrong(True)
    assert not any(run.Verdict(kind).wrong(False) for kind in ("equal", "said", "refused"))


def test_every_program_has_rows() -> None:
    assert {row.program for row in run.ROWS} == {p.stem for p in FOLDER.glob("*.py")} - {"run", "fault"}


class Forked(run.Jobs):
    """Jobs whose ranks fork."""

    def _ended(self, command: list[str], env: dict[str, str]) -> run.Run:
        at = command.index("--")
        job = Job.of(launched(command[:at], command[at + 1 :], env, self.folder), command[command.index("--job") + 1])
        return run.Run(job.wait(), job.printed())


@pytest.fixture(scope="module")
def jobs(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> run.Jobs:
    return Forked(daemon.env, tmp_path_factory.mktemp("reports"), binary=str(daemon.program))


@pytest.mark.parametrize(("name", "fault"), FAST)
def test_rows(name: str, fault: str, jobs: run.Jobs) -> None:
    (row,) = [r for r in run.ROWS if (r.name, r.fault) == (name, fault)]
    found = jobs.verdict(row)
    assert found.kind == ("WRONG" if row.control else "equal"), found
