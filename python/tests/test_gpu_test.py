"""What `make gpu-test` says of its jobs: its rules; and the command itself, without a GPU and with the CPU in its place."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from conftest import PATIENCE, ROOT, environment

FOLDER = ROOT / "bench" / "torch" / "gpu"


def loaded(name: str) -> ModuleType:
    """A module of the folder. Others of the tests' have a `run` too."""
    spec = importlib.util.spec_from_file_location(f"gpu_test_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(FOLDER))
try:
    import rows

    run = loaded("run")
finally:
    sys.path.remove(str(FOLDER))

EVERY = rows.rows(64, 100)
ONE_GPU = {"gpus": [{}], "backends": ["gloo", "nccl"], "torch": "2.11"}


# -- rules --------------------------------------------------------------------------------------------------------------------


def printed(*events: dict[str, object], status: int | None = 0) -> rows.Run:
    lines = [json.dumps({"gpu-test": 1, "t": i * 10**8, "rank": 0, "pid": 1} | e) for i, e in enumerate(events)]
    return rows.Run(status, "\n".join(["replicad run: rank 0: process 1 runs", *lines, "torch.AcceleratorError: lost", "[rank0] the end"]))


def done(parameters: str, rank: int = 0) -> dict[str, object]:
    return {"event": "done", "rank": rank, "digests": {"parameters": parameters, "generators": "x"}}


FAULT = {"event": "fault", "what": "raise", "place": "backward", "step": 5, "epoch": 1}
ROW = rows.Row("a row", ("--plan", "raise:backward:5"))
CONTROL = rows.Row("a row", ("--plan", "raise:backward:5"), control=True)


@pytest.mark.parametrize(
    ("row", "hit", "straight", "verdict", "text"),
    [
        (ROW, printed(FAULT, done("a")), printed(done("a")), "ok", "bits equal"),
        (ROW, printed(FAULT, done("b")), printed(done("a")), "WRONG", "differ: parameters (rank 0)"),
        (ROW, printed(done("a")), printed(done("a")), "WRONG", "0 faults of 1 came"),
        (ROW, printed(FAULT), printed(done("a")), "WRONG", "not every rank came to its end"),
        (ROW, printed(FAULT, done("a")), printed(), "WRONG", "not every rank came to its end"),
        (ROW, printed(FAULT, status=None), printed(done("a")), "hung", "not over in its time"),
        (ROW, printed(FAULT, status=1), printed(done("a")), "failed", "status 1: torch.AcceleratorError: lost"),
        (ROW, printed(FAULT, done("a")), printed(status=1), "failed", "the undisturbed run: status 1"),
        (CONTROL, printed(FAULT, done("b")), printed(done("a")), "ok", "differ: parameters (rank 0)"),
        (CONTROL, printed(FAULT, done("a")), printed(done("a")), "WRONG", "the digests are equal"),
        (CONTROL, printed(done("b")), printed(done("a")), "WRONG", "0 faults of 1 came"),
    ],
)
def test_verdicts(row: rows.Row, hit: rows.Run, straight: rows.Run, verdict: str, text: str) -> None:
    (found,) = rows.judge(row, hit, straight)
    assert found.verdict == verdict
    assert text in found.figure


STEP = {"event": "step", "epoch": 2}


@pytest.mark.parametrize(
    ("events", "verdict", "figure"),
    [
        ([STEP], "ok", "0.10 s"),
        ([STEP | {"epoch": 1}] * 12 + [STEP], "over", "1.30 s"),
        ([{"event": "start", "age": 1.2}] * 14 + [STEP], "ok", "1.50 s, 0.30 s beyond the start"),
        ([{"event": "start", "age": 1.2}] * 54 + [STEP], "over", "5.50 s, 4.30 s beyond the start"),
    ],
)
def test_a_recovery_ends_with_the_first_step_of_the_next_epoch(events: list[dict[str, object]], verdict: str, figure: str) -> None:
    (found,) = rows.recoveries(1)(printed(FAULT, *events), None)
    assert (found.row, found.verdict, found.figure) == ("raise in backward", verdict, figure)


def test_growth_is_seen() -> None:
    look = {"event": "memory", "host": 100 << 20, "device": 1 << 30, "pinned": 0, "threads": 9, "descriptors": 20}
    before = [look] * 13
    assert {r.verdict for r in rows.flat(printed(*before, *before), None)} == {"ok"}
    for what, more in (("host", 33 << 20), ("device", 9 << 20), ("pinned", 4096), ("threads", 1), ("descriptors", 1)):
        grown = look | {what: look[what] + more}  # type: ignore[operator]
        assert [r.row for r in rows.flat(printed(*before, *[grown] * 10), None) if r.verdict == "over"] == [what]


def test_a_process_that_should_have_been_replaced() -> None:
    start = {"event": "start", "age": 1.0}
    once, twice = printed(start), printed(start, start | {"pid": 2})
    assert [next(judge(run, None)).verdict for judge in (rows.same_process, rows.new_process) for run in (once, twice)] == ["ok", "WRONG", "WRONG", "ok"]


def test_the_exit_status() -> None:
    def status(*verdicts: str) -> int:
        return rows.status([rows.Result("a", v) for v in verdicts])

    assert [status("ok", "over", v) for v in ("WRONG", "failed", "hung")] == [1, 1, 1]
    assert [status("ok", "skipped"), status("ok", "over", "no time"), status("ok", "no time"), status("skipped", "skipped")] == [0, 2, 3, 77]


def test_a_machine_is_named_what_it_lacks() -> None:
    assert {why for r in EVERY if (why := rows.lacks(r, {"gpus": []}, "cuda"))} == {"needs a GPU, there is none"}
    lacks = {r.name: why for r in EVERY if (why := rows.lacks(r, ONE_GPU, "cuda"))}
    assert set(lacks.values()) == {"needs 2 GPUs, there are 1", "needs nccl2, which torch 2.11 lacks"} and len(lacks) == 4
    assert not [r.name for r in EVERY if rows.lacks(r, {"gpus": [{}, {}], "backends": ["gloo", "nccl", "nccl2"], "torch": "2.15"}, "cuda")]


def test_plans() -> None:
    assert rows.parsed("kill:window:3,raise:forward:5-7") == [("kill", "window", 3), *(("raise", "forward", s) for s in (5, 6, 7))]
    assert {r.faults for r in EVERY if r.name.startswith("100 restarts")} == {100}
    assert all(r.faults for r in EVERY if r.trains)


def wheel(path: Path, files: dict[str, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as z:
        for name, text in files.items():
            z.writestr(name, text)


def test_what_is_tested(tmp_path: Path) -> None:
    """The wheel of this tree; what was built here, if the wheel is of another; the wheel that is there, if nothing is."""
    source, scratch = tmp_path / "python" / "src" / "replicad", tmp_path / "scratch"
    source.mkdir(parents=True)
    (source / "a.py").write_text("here")
    with pytest.raises(SystemExit, match="neither"):
        run.package(tmp_path, scratch)
    program = {"replicad-1.data/scripts/replicad": ""}
    wheel(tmp_path / "dist" / "replicad-1.whl", {"replicad/a.py": "there"} | program)
    assert run.package(tmp_path, scratch)[::2] == (scratch, "replicad-1.whl (of another tree)")
    (tmp_path / "bin").mkdir()
    for name in ("replicad", "libreplicad.so"):
        (tmp_path / "bin" / name).touch()
    assert run.package(tmp_path, scratch)[:2] == (source.parent, tmp_path / "bin" / "replicad")
    wheel(tmp_path / "dist" / "replicad-1.whl", {"replicad/a.py": "here"} | program)
    at, binary, of = run.package(tmp_path, scratch)
    assert (at, of) == (scratch, "replicad-1.whl") and os.access(binary, os.X_OK)


def test_torch_has_the_words_that_only_a_gpu_would_hear() -> None:
    """No test runs these lines: they must at least name what there is."""
    chains = {ast.unparse(n) for f in FOLDER.glob("*.py") for n in ast.walk(ast.parse(f.read_text())) if isinstance(n, ast.Attribute)}
    plain = {c for c in chains if c.startswith("torch.") and all(word.isidentifier() for word in c.split("."))}
    assert {"torch.cuda.CUDAGraph", "torch.cuda.Stream"} <= plain
    for chain in plain:
        at: object = torch
        for word in chain.split(".")[1:]:
            assert hasattr(at, word), chain
            at = getattr(at, word)


# -- the command --------------------------------------------------------------------------------------------------------------

#: Brings up the loopback of a network that has nothing else, and goes on as another program.
ALONE = """
import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0x41))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def offline() -> list[str]:
    """What begins a command without any network, where this user may make such a thing."""
    prefix = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", ALONE]
    there = shutil.which("unshare") and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if there else []


def command(out: Path, *flags: str) -> tuple[int, str, dict[str, list[str]]]:
    """Its status, what it printed, and the verdicts and figures of its rows."""
    call = [*offline(), sys.executable, str(FOLDER / "run.py"), "--out", str(out), *flags]
    env = environment(CUDA_VISIBLE_DEVICES="")
    del env["PYTHONPATH"]
    finished = subprocess.run(call, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE, check=False)
    assert (out / "gpu-test.json").exists(), finished.stdout
    told = json.loads((out / "gpu-test.json").read_text())
    assert told["status"] == finished.returncode
    assert (out / "gpu-test.md").read_text() in finished.stdout
    return finished.returncode, finished.stdout, {r["row"]: [r["verdict"], r["figure"]] for r in told["rows"]}


def test_without_a_gpu_every_row_is_skipped_by_name(tmp_path: Path) -> None:
    status, text, found = command(tmp_path / "out")
    assert status == 77, text
    assert set(found) == {r.name for r in EVERY}
    assert set(map(tuple, found.values())) == {("skipped", "needs a GPU, there is none")}


def on_a_cpu(out: Path, only: str) -> dict[str, list[str]]:
    """Real jobs, without a network. Times are no matter here, as on any machine that does other things too."""
    status, text, found = command(out, "--device", "cpu", "--only", only, "--restarts", "5", "--side", "2", "--seconds", "3000", "--patience", "30")
    assert status in (0, 2), text
    assert {verdict for verdict, _ in found.values()} <= {"ok", "over"}, text
    return found


def test_rows_on_a_cpu(tmp_path: Path) -> None:
    found = on_a_cpu(tmp_path / "out", "control,capture:")
    assert found["control: generators not kept"][1].startswith("differ: buffers (rank 0), generators (rank 0)")
    assert {"capture: device to stage", "capture: stall of a step"} <= set(found)


@pytest.mark.long
def test_more_rows_on_a_cpu(tmp_path: Path) -> None:
    found = on_a_cpu(tmp_path / "out", "busy,two ranks:,by restart,restarts in,dropout,GradScaler,bfloat16,optimizer adamw-foreach")
    assert "5 restarts in process: threads" in found
    assert {what.partition(":")[2] for what in found if what.startswith("in process")} == {f" {w} in {p}" for w in ("raise", "kill") for p in ("forward", "backward", "window")} | {
        " raise in after"
    }
    assert [found[name] for name in ("dropout and noise on the device", "bfloat16 parameters")] == [["ok", "bits equal"]] * 2
