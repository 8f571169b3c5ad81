"""What tests of whole jobs share: programs under a daemon or under `replicad demo`, and what they said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import STARTUP
from pace import Limit, patient

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "torch"
REPLICAD = ROOT / "bin" / "replicad"
#: No test asserts a time; this bounds waits for what should have happened long ago, in seconds.
QUIET = 900.0
PATIENCE = patient(QUIET)

#: For what shards with FSDP2.
fsdp2 = pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason=f"FSDP2 of torch {torch.__version__} does not run on a CPU")


def environment(**more: str) -> dict[str, str]:
    """An environment without anything of a rank, in which the package of this checkout is found, and torch starts quickly."""
    drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("REPLICAD_", "TORCHELASTIC_")) and k not in drop}
    return env | {"PYTHONPATH": os.pathsep.join([str(ROOT / "python" / "src"), STARTUP]), "OMP_NUM_THREADS": "1"} | more


class Result:
    """What the ranks of a job printed."""

    def __init__(self, text: str) -> None:
        self.text, self.events = text, []
        for line in text.splitlines():
            if line.startswith("{"):
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    continue  # a line that another one cut into

    def digests(self) -> dict[int, tuple[str, str, str]]:
        """By rank: weights, optimizer, and what is the rank's own."""
        done = [e for e in self.events if e.get("event") == "done"]
        return {e["rank"]: (e["digest"], e["state_digest"], e["private_digest"]) for e in done}


def call(command: list[str], **env: str) -> Result:
    """Runs a command to its good end."""
    process = subprocess.Popen(command, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    limit = Limit(QUIET, f"the end of {' '.join(command)}")
    while True:
        try:
            said, _ = process.communicate(timeout=1)
            break
        except subprocess.TimeoutExpired as late:
            if limit.over():
                process.kill()
                raise AssertionError(f"{' '.join(command)} has not ended within {QUIET} s of a quiet machine:\n{(late.stdout or b'')[-12000:]!r}") from None
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}:\n{said[-12000:]}"
    return Result(said)


def baseline(script: str, world: int, *flags: str) -> Result:
    """The same training without replicad and without faults."""
    return call([sys.executable, str(EXAMPLES / script), "--baseline", "--world", str(world), *flags])


def demo(script: str, world: int, faults: str, seed: int, folder: Path, *flags: str, groups: str = "", every: int = 60) -> dict[str, Any]:
    """Runs `replicad demo` over a torch job: four nodes, these faults at moments by the seed, ``every`` so many steps, an undisturbed run to
    compare with. ``groups`` is the replica group of each rank; all are of one unless given. The report; a verdict other than bit-equal is an error."""
    trainer = " ".join([sys.executable, str(EXAMPLES / script), *flags])
    steps = every * (len(faults.split(",")) + 2)
    call([
        str(REPLICAD), "demo", "--plain", "--trainer", trainer, "--world", str(world), "--faults", faults, "--seed", str(seed), "--steps", str(steps), "--pace", "50ms",
        "--report", str(folder), "--dir", str(folder / "d"), *(("--groups", groups) if groups else ()),
    ])  # fmt: skip
    return dict(json.loads((folder / "report.json").read_text()))
