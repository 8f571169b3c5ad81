"""What is left of the tests where torch, and numpy with it, can't be installed."""

from __future__ import annotations

import subprocess
import sys

from conftest import NEEDS_TORCH, PATIENCE, ROOT, environment

BLOCKED = ("torch", "numpy", "peft", "transformers", "accelerate", "safetensors")


def test_all_other_files_are_collected() -> None:
    program = f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED}))\nimport pytest\nraise SystemExit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider']))"
    got = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "python", env=environment() | {"CI": ""}, capture_output=True, text=True, timeout=PATIENCE)
    assert got.returncode == 0, got.stdout
    files = {line.partition("::")[0].removeprefix("tests/") for line in got.stdout.splitlines() if "::" in line}
    assert {"test_rank.py", "test_errors.py", "test_wheel.py"} <= files
    assert files == {p.name for p in (ROOT / "python" / "tests").glob("test_*.py")} - set(NEEDS_TORCH)
    assert "test_jobs.py" in NEEDS_TORCH
