"""How large the package's files, classes and circles are: what shapes.md lists only gets smaller. internal/importwall holds the same of Go."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src" / "replicad"
TABLE = Path(__file__).with_name("shapes.md")
#: What holds where shapes.md has no row: methods and attributes of a class, lines of a function and of a file.
GOALS = {"methods": 50, "attributes": 20, "function": 80, "file": 500}
TREE = "tree"


def modules() -> dict[str, Path]:
    """Each file of the package by its name, as replicad._core.rank."""
    return {".".join(["replicad", *f.relative_to(SRC).with_suffix("").parts]).removesuffix(".__init__"): f for f in sorted(SRC.rglob("*.py"))}


def imported(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """The files of the package that a file imports, wherever it does."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for n in ast.walk(ast.parse(file.read_text())):
        if isinstance(n, ast.Import):
            found |= {alias.name for alias in n.names}
        elif isinstance(n, ast.ImportFrom):
            base = ".".join([*(package[: len(package) - n.level + 1] if n.level else []), *([n.module] if n.module else [])])
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in n.names}
    return (found & known.keys()) - {name}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The largest set of nodes that reach each other."""
    reach = {}
    for start in graph:
        seen, to_see = set(), [start]
        while to_see:
            for other in graph[to_see.pop()] - seen:
                seen.add(other)
                to_see.append(other)
        reach[start] = seen
    return max((sorted(b for b in reach[a] if a in reach[b]) for a in graph), key=len, default=[])


def own(tree: ast.AST) -> set[str]:
    """The private names that a file defines or sets itself."""
    names = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))}
    names |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in ("self", "cls")}


def lengths(tree: ast.AST) -> Iterator[int]:
    for n in ast.walk(tree):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (n.end_lineno or 0) - n.lineno + 1


def shapes() -> dict[tuple[str, str], int]:
    """What was measured: of a file its largest class and function, of the tree its circle, imports in functions, and uses of privates of other files."""
    known, got = modules(), defaultdict(int)
    graph = {}
    for name, file in known.items():
        text = file.read_text()
        tree = ast.parse(text)
        graph[name] = imported(name, file, known)
        got[name, "file"] = text.count("\n")
        got[name, "function"] = max(lengths(tree), default=0)
        for c in ast.walk(tree):
            if isinstance(c, ast.ClassDef):
                methods = [n for n in c.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
                set_ = {n.attr for m in methods for n in ast.walk(m) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self"}
                got[name, "methods"] = max(got[name, "methods"], len(methods))
                got[name, "attributes"] = max(got[name, "attributes"], len(set_))
        functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        got[TREE, "late imports"] += len({i.lineno for f in functions for i in ast.walk(f) if isinstance(i, (ast.Import, ast.ImportFrom))})
        mine = own(tree)
        got[TREE, "privates"] += sum(isinstance(n, ast.Attribute) and n.attr.startswith("_") and not n.attr.startswith("__") and n.attr not in mine for n in ast.walk(tree))
    got[TREE, "circle"] = len(circle(graph))
    return got


def judged(rows: dict[tuple[str, str], int], got: dict[tuple[str, str], int]) -> tuple[dict[tuple[str, str], int], list[str]]:
    """The rows as they may be from now on, and what is wrong with them and with the package."""
    left, wrong = {}, []
    for (what, measure), most in rows.items():
        n, goal = got.get((what, measure), 0), GOALS.get(measure, 0)
        if n > most:
            wrong.append(f"{what}: {measure} is {n} and was {most}: it may only fall")
        elif n <= goal:
            wrong.append(f"{what}: {measure} is {n}, which needs no row any more: LOWER=1 pytest tests/test_shapes.py")
            continue
        elif n < most:
            wrong.append(f"{what}: {measure} is {n} and no longer {most}: LOWER=1 pytest tests/test_shapes.py")
        left[what, measure] = min(n, most)
    for (what, measure), n in got.items():
        if n > GOALS.get(measure, 0) and (what, measure) not in rows:
            wrong.append(f"{what}: {measure} is {n}, and {GOALS.get(measure, 0)} is the most")
    return left, wrong


def test_shapes() -> None:
    head, rows = [], {}
    for line in TABLE.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 3 and cells[2].isdigit():
            rows[cells[0], cells[1]] = int(cells[2])
        else:
            head.append(line)
    left, wrong = judged(rows, shapes())
    if os.environ.get("LOWER"):
        TABLE.write_text("\n".join([*head, *(f"| {what} | {measure} | {n} |" for (what, measure), n in left.items())]) + "\n")
    else:
        assert wrong == []


def test_shapes_are_judged() -> None:
    rows = {("a", "file"): 600, ("b", "file"): 600, ("c", "file"): 600, ("d", "file"): 600, (TREE, "circle"): 5}
    left, wrong = judged(rows, {("a", "file"): 600, ("b", "file"): 601, ("c", "file"): 590, ("d", "file"): 500, ("e", "file"): 501, (TREE, "circle"): 6})
    assert left == {("a", "file"): 600, ("b", "file"): 600, ("c", "file"): 590, (TREE, "circle"): 5}
    assert [w[:14] for w in wrong] == ["b: file is 601", "c: file is 590", "d: file is 500", "tree: circle i", "e: file is 501"]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == ["a", "b", "c"]
