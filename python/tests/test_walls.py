"""Who may import whom: what holds the package's rooms apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "replicad"
#: What a room may import of the package. A room is a directory, or a module at the top.
MAY = {
    "_core": {"errors"},
    "_torch": {"_core", "data", "errors", "parallel", "rng"},
    "errors": set(),
    "data": {"_core", "errors", "rng"},
    "parallel": set(),
    "rng": {"_core", "errors"},
}


def imports(file: Path) -> Iterator[str]:
    """The full names of what a file imports when it is loaded. What a function imports, and what types alone need, is its own affair."""
    package = ["replicad", *file.relative_to(SRC).parts[:-1]]
    for n in ast.parse(file.read_text()).body:
        if isinstance(n, ast.Import):
            yield from (alias.name for alias in n.names)
        elif isinstance(n, ast.ImportFrom):
            base = package[: len(package) - n.level + 1] if n.level else []
            yield from (".".join([*base, *([n.module] if n.module else []), alias.name]) for alias in n.names)


@pytest.mark.parametrize("room", MAY)
def test_rooms(room: str) -> None:
    files = list((SRC / room).glob("*.py")) or [SRC / f"{room}.py"]
    seen = {(file.name, name.split(".")[1]) for file in files for name in imports(file) if name.startswith("replicad.")}
    assert len(files) > 1 or seen or not MAY[room], "nothing was looked at"
    assert {(file, other) for file, other in seen if other not in MAY[room] | {room}} == set()


def test_core_is_without_torch() -> None:
    for file in (SRC / "_core").glob("*.py"):
        assert {name.partition(".")[0] for name in imports(file)} & {"torch", "numpy"} == set(), file.name
