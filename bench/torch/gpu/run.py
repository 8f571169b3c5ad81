"""What a GPU shows of replicad, in ten minutes, on the machine that has one: `make gpu-test`.

    python bench/torch/gpu/run.py                      all rows
    python bench/torch/gpu/run.py --only graph,NCCL    the rows whose names have one of these in them
    python bench/torch/gpu/run.py --device cpu         those that say something without a GPU

It needs torch in the Python that runs it, `bin/` or a wheel in `dist/`, and 16 GB of GPU memory. It needs no network, and installs nothing. Each row is a job of its own, with a
launcher and real sessions, under one daemon. What a row trains is compared with an undisturbed run, in a process without replicad. A table to paste comes last. ``--out`` has it
as gpu-test.md and gpu-test.json, and the output of each run. A row that this machine can't run, or that the time doesn't allow, has a line with the reason.

The exit status is 0 where all that ran is right; 1 where something is wrong, failed or hung; 2 where only figures are beyond their limits; 3 where only time was short;
77 where nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rows import ALL, GIB, LEAST, Result, Row, Run, judge, lacks, rows, status, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
#: Seconds that are left for the end: a launcher that is ended takes ten, and so may the daemon.
RESERVE = 25.0
#: What launchers tell ranks, and what rows set.
DROP = re.compile(r"REPLICAD_|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCH_NCCL_|TORCHELASTIC_")
#: MiB of state that are copied, without a GPU and with one that has the room.
SMALL, LARGE = 16, 1536
#: The same kernels in every process.
STEADY = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONDONTWRITEBYTECODE": "1"}
#: Ranks meet on this machine, whatever networks it has.
LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


# -- what is tested -----------------------------------------------------------------------------------------------------------


def package(root: Path, scratch: Path) -> tuple[Path, Path, str]:
    """The folder of the package, the program, and what they are: the wheel if it is of this tree, or there is nothing else; else python/src with bin/."""
    wheels, source, program = sorted(root.glob("dist/replicad-*.whl")), root / "python" / "src", root / "bin" / "replicad"
    built = program.exists() and (root / "bin" / "libreplicad.so").exists()
    if wheels and (not built or of_this_tree(wheels[-1], source)):
        with zipfile.ZipFile(wheels[-1]) as z:
            z.extractall(scratch)
        (program,) = scratch.glob("*.data/scripts/replicad")
        program.chmod(0o755)
        return scratch, program, wheels[-1].name + (" (of another tree)" if source.exists() and not of_this_tree(wheels[-1], source) else "")
    if not built:
        raise SystemExit("gpu-test: there is neither bin/replicad with bin/libreplicad.so nor a wheel in dist/: `make build` where Go and gcc are, and copy bin/ here")
    return source, program, "python/src with bin/" + (f"; {wheels[-1].name} is of another tree" if wheels else "")


def of_this_tree(wheel: Path, source: Path) -> bool:
    """Whether the Python files of a wheel are those of a source tree."""
    here = {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("replicad/**/*.py")}
    with zipfile.ZipFile(wheel) as z:
        return here == {n: z.read(n) for n in z.namelist() if n.endswith(".py")}


def environment(package: Path) -> dict[str, str]:
    """Of each process: this package comes first."""
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    return {k: v for k, v in os.environ.items() if not DROP.match(k)} | STEADY | LOCAL | {"PYTHONPATH": path}


def facts(env: Mapping[str, str]) -> dict[str, Any]:
    """What the machine has."""
    done = subprocess.run([sys.executable, str(HERE / "facts.py")], env=env, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"gpu-test: {sys.executable} can't train (see above): name a Python that has torch, as in make gpu-test PYTHON=/path/to/python")
    return dict(json.loads(done.stdout))


def said(found: Mapping[str, Any]) -> str:
    """The facts, in a line."""
    gpus = ", ".join(f"{g['name']} ({g['total'] / GIB:.0f} GiB, {g['free'] / GIB:.0f} free)" for g in found["gpus"]) or "no GPU"
    words = [f"torch {found['torch']}", f"Python {found['python']}", f"CUDA {found['cuda'] or '-'}", f"NCCL {found['nccl'] or '-'}", f"driver {found['driver'] or '-'}", gpus]
    return ", ".join([*words, f"{found['cores']} cores", f"{found['available'] / GIB:.0f} GiB of host memory", f"a process starts in {found['start']:.1f} s"])


def state_mb(found: Mapping[str, Any]) -> int:
    """How large the state is that is copied: a GPU holds three times as much for it, the host six. A CPU that computes in its place has enough with little."""
    if not found["gpus"]:
        return SMALL
    return max(SMALL, min(LARGE, int(min(found["gpus"][0]["free"] / 4, found["available"] / 8)) >> 20))


# -- jobs ---------------------------------------------------------------------------------------------------------------------


class Jobs:
    """Runs rows under a daemon, each in its time."""

    def __init__(self, daemon: Any, env: Mapping[str, str], out: Path, device: str, usual: Callable[[Row], float], end: float) -> None:
        """``usual`` says how many seconds a row may take, and nothing goes on after ``end``."""
        self._daemon, self._env, self._out, self._device, self._usual, self._end = daemon, dict(env), out, device, usual, end

    def result(self, number: int, row: Row) -> list[Result]:
        """Runs a row, and what it is compared with beside it unless times count."""
        limit, left = self._usual(row), self._end - time.monotonic()
        if left < LEAST * limit:
            return [Result(row.name, "no time", f"it may take {limit:.0f} s, and {left:.0f} s are left")]
        deadline, began = time.monotonic() + min(limit, left), time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            straight = pool.submit(self._straight, number, row, deadline) if row.trains and not row.alone else None
            hit = self._hit(number, row, deadline)
            if row.trains and straight is None:
                straight = pool.submit(self._straight, number, row, deadline)
            found = judge(row, hit, straight.result() if straight else None)
        print(f"gpu-test: {row.name}: {', '.join(sorted({r.verdict for r in found}))} ({time.monotonic() - began:.0f} s of {limit:.0f})", flush=True)
        return found

    def _command(self, row: Row, folder: Path) -> list[str]:
        folder.mkdir()
        backend = ["--backend", row.backend if self._device == "cuda" else "gloo"] if row.trains else []
        return [sys.executable, str(HERE / row.program), *row.flags, "--device", self._device, "--folder", str(folder), *backend]

    def _hit(self, number: int, row: Row, deadline: float) -> Run:
        name = f"gpu-{number}"
        ranks = ",".join(map(str, range(row.world)))
        launcher = ["run", "--dev", "--job", name, "--world", str(row.world), "--ranks", ranks, "--min-copies", "1", "--slots", "2", "--"]
        env = self._env | dict(row.env) | {"XDG_STATE_HOME": self._daemon.folder}
        process = self._daemon.start(*launcher, *self._command(row, self._out / f"{name}.files"), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return self._ended(name, [process], deadline)

    def _straight(self, number: int, row: Row, deadline: float) -> Run:
        """Without replicad: a process a rank."""
        name = f"gpu-{number}-undisturbed"
        command = [*self._command(row, self._out / f"{name}.files"), "--undisturbed"]
        processes = []
        for rank in range(row.world):
            env = self._env | {"RANK": str(rank), "WORLD_SIZE": str(row.world)}
            processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return self._ended(name, processes, deadline)

    def _ended(self, name: str, processes: Sequence[subprocess.Popen[str]], deadline: float) -> Run:
        """How they ended. Those that have not by then are."""
        with ThreadPoolExecutor(len(processes)) as pool:
            outputs = list(pool.map(lambda p: output(p, deadline), processes))
        codes = [code for code, _ in outputs]
        text = "".join(said for _, said in outputs)
        (self._out / f"{name}.log").write_text(text)
        return Run(None if None in codes else next((c for c in codes if c), 0), text)


def output(process: subprocess.Popen[str], deadline: float) -> tuple[int | None, str]:
    """Its status, None where it was ended, and what it printed."""
    try:
        text, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        return process.returncode, text
    except subprocess.TimeoutExpired:
        process.terminate()  # a launcher ends its ranks
    try:
        text, _ = process.communicate(timeout=12)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
    return None, text


def all_of(jobs: Jobs, chosen: Mapping[int, Row], side: int) -> Iterator[tuple[int, list[Result]]]:
    """First those whose times count, then the others, some side by side."""
    for number, row in chosen.items():
        if row.alone:
            yield number, jobs.result(number, row)
    others = [number for number, row in chosen.items() if not row.alone]
    with ThreadPoolExecutor(side) as pool:
        yield from zip(others, pool.map(lambda number: jobs.result(number, chosen[number]), others), strict=True)


# -- the whole ----------------------------------------------------------------------------------------------------------------


def selected(every: Iterable[Row], only: str) -> list[Row]:
    """The rows whose names have one of some words in them."""
    words = [w for w in only.split(",") if w]
    return [r for r in every if not words or any(w in r.name for w in words)]


def written(out: Path, found: Mapping[str, Any], of: str, results: Sequence[Result], took: float) -> None:
    """The table, as text and as data."""
    text = f"{said(found)}; {of}\n\n{table(results)}\n\n{took:.0f} s\n"
    (out / "gpu-test.md").write_text(text)
    (out / "gpu-test.json").write_text(json.dumps({"facts": found, "of": of, "seconds": round(took, 1), "status": status(results), "rows": [asdict(r) for r in results]}, indent=1))
    print(f"\n{text}\ngpu-test: logs and gpu-test.json are in {out}")


def arguments() -> argparse.Namespace:
    """Of the command."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="", help="words with commas: the rows that have one of them in their names")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--out", type=Path, default=ROOT / "bin" / "gpu-test")
    p.add_argument("--seconds", type=float, default=ALL, help="that all of it may take")
    p.add_argument("--patience", type=float, default=1.0, help="so many times a row's usual time may it take: on a machine that does other things")
    p.add_argument("--side", type=int, default=0, help="rows side by side where no time counts (default: a quarter of the cores, 3 at most)")
    p.add_argument("--restarts", type=int, default=100, help="in process, of the row that counts what they leave behind")
    return p.parse_args()


def main() -> int:
    """The exit status."""
    args, began = arguments(), time.monotonic()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    out = args.out.resolve()
    with tempfile.TemporaryDirectory(prefix="replicad-gpu-") as scratch:
        at, program, of = package(ROOT, Path(scratch))
        env = environment(at)
        found = facts(env)
        print(f"gpu-test: {said(found)}; {of}", flush=True)
        chosen = dict(enumerate(selected(rows(state_mb(found), args.restarts), args.only)))
        results = {number: [Result(row.name, "skipped", why)] for number, row in chosen.items() if (why := lacks(row, found, args.device))}
        if runs := {number: row for number, row in chosen.items() if number not in results}:
            sys.path.insert(0, str(at))
            from replicad.testing.daemon import Daemon

            side = args.side or max(1, min(3, found["cores"] // 4))
            daemon = Daemon(str(program))
            with daemon:
                jobs = Jobs(daemon, env, out, args.device, lambda row: args.patience * row.limit(found["start"]), began + args.seconds - RESERVE)
                results |= dict(all_of(jobs, runs, side))
        in_order = [result for number in chosen for result in results[number]]
        written(out, found, of, in_order, time.monotonic() - began)
    return status(in_order)


if __name__ == "__main__":
    sys.exit(main())
