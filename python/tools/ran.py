"""Says which rows of docs/conformance.md were run: `python tools/ran.py trl deepspeed`, after their tests have passed as the page says. Each row has a digest of what it was run
with: where that has changed since, `tests/test_conformance.py` fails until the row was run again."""

from __future__ import annotations

import hashlib
import re
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "conformance.md"
ADAPTERS = "python/src/replicad/adapters"
#: What a row is of: the adapter's files, and the packages of a list that it was run with.
ROWS: dict[str, tuple[list[str], str, list[str]]] = {
    "trl": ([f"{ADAPTERS}/huggingface.py", f"{ADAPTERS}/_boards.py"], "frameworks", ["torch", "transformers", "accelerate", "trl", "datasets"]),
    "loggers": ([f"{ADAPTERS}/_logs.py", f"{ADAPTERS}/_boards.py"], "frameworks", ["torch", "lightning", "transformers", "accelerate", "tensorboard", "wandb"]),
    "deepspeed": ([f"{ADAPTERS}/deepspeed.py", f"{ADAPTERS}/_builds.py", f"{ADAPTERS}/_loop.py"], "deepspeed", ["torch", "deepspeed"]),
    "torchtitan": ([f"{ADAPTERS}/torchtitan.py", f"{ADAPTERS}/_loop.py"], "deepspeed", ["torch", "torchtitan"]),
    "megatron": ([f"{ADAPTERS}/megatron.py", f"{ADAPTERS}/_loop.py"], "frameworks", ["torch", "megatron-core"]),
    "megatron, newest": ([f"{ADAPTERS}/megatron.py", f"{ADAPTERS}/_loop.py"], "megatron", ["torch", "megatron-core"]),
    "ray": (["python/src/replicad/_core/joining.py"], "frameworks", ["torch", "ray"]),
}


def digest(row: str, root: Path = ROOT) -> str:
    """Of what a row is of."""
    files, name, packages = ROWS[row]
    wished = dict(line.split("==") for line in (root / f"python/requirements-{name}.in").read_text().splitlines() if "==" in line and not line.startswith("#"))
    whole = hashlib.sha256()
    for file in files:
        whole.update((root / file).read_bytes())
    for package in packages:
        whole.update(f"{package}=={wished[package].split(';')[0].strip()}\n".encode())
    return whole.hexdigest()[:12]


def said(page: Path = PAGE) -> dict[str, tuple[str, str]]:
    """The page's rows: the digest, and the day."""
    found = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([0-9a-f]{12})` \| ([^|]+) \|$", page.read_text(), re.M)
    return {row: (of, day) for row, of, day in found}


def main() -> int:
    """Writes today's day and the digest into each row that is named."""
    text, today = PAGE.read_text(), datetime.now(timezone.utc).date().isoformat()
    for row in sys.argv[1:]:
        if row not in ROWS:
            print(f"ran.py: {row!r}: want one of {', '.join(ROWS)}", file=sys.stderr)
            return 2
        text = re.sub(rf"^(\| {re.escape(row)} \| [^|]+) \| `[0-9a-f]{{12}}` \| [^|]+ \|$", rf"\1 | `{digest(row)}` | {today} |", text, flags=re.M)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
