"""Writes hyperpod-names.txt: the public names of HyperPod's checkpointless training, each of which has a row in docs/migration-hyperpod.md::

python tests/hyperpod_names.py FOLDER-OF-ITS-SOURCES COMMIT > tests/hyperpod-names.txt

Of what a training script names: classes, their parameters, attributes, methods with parameters, and functions. Of the rest the classes alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

#: Modules whose classes a training script makes, derives from or configures.
WHOLE = (
    *(f"inprocess/{m}" for m in ("abort", "compose", "exception", "finalize", "health_check", "hp_fault_handling_thread", "parameter_update_lock", "train_utils", "wrap")),
    *(f"nemo_plugins/{m}" for m in ("abort", "callbacks", "checkpoint_connector", "checkpoint_manager", "megatron_strategy", "memory_checksum", "patches", "resume")),
)


def main(folder: Path, commit: str) -> None:
    """Prints the names."""
    print(f"# aws/sagemaker-hyperpod-checkpointless-training at {commit}, by tests/hyperpod_names.py")
    for file in sorted(folder.rglob("*.py")):
        module = str(file.relative_to(folder).with_suffix(""))
        for name in _names(ast.parse(file.read_text()), module in WHOLE):
            print(name)


def _names(module: ast.Module, whole: bool) -> Iterator[str]:
    for node in module.body:
        if getattr(node, "name", "_").startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield node.name
            if whole:
                yield from (f"{node.name}.{member}" for member in dict.fromkeys(_members(node)))
        elif isinstance(node, ast.FunctionDef) and whole:
            yield f"{node.name}({', '.join(_parameters(node))})"


def _members(of: ast.ClassDef) -> Iterator[str]:
    methods = [n for n in of.body if isinstance(n, ast.FunctionDef)]
    for m in methods:
        if m.name == "__init__":
            yield from (f"__init__({p})" for p in _parameters(m))
    taken = {p for m in methods if m.name == "__init__" for p in _parameters(m)}
    for m in methods:
        if any(ast.unparse(d) == "property" for d in m.decorator_list):
            yield m.name
        elif not m.name.startswith("_") and not any(ast.unparse(d).endswith(".setter") for d in m.decorator_list):
            yield f"{m.name}({', '.join(_parameters(m))})"
        taken.add(m.name)
    for n in ast.walk(of):
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self" and n.attr not in taken and not n.attr.startswith("_"):
            yield n.attr


def _parameters(of: ast.FunctionDef) -> list[str]:
    named = [p.arg for p in (*of.args.posonlyargs, *of.args.args, *of.args.kwonlyargs) if p.arg not in ("self", "cls")]
    return [*named, *([f"*{of.args.vararg.arg}"] if of.args.vararg and len(of.args.vararg.arg) > 4 else [])]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
