"""docs/migration-hyperpod.md: every public name of HyperPod's has a row, and what its right side says runs in the page's own program."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: the page's program is a PyTorch program")

import replicad
from conftest import ROOT, Daemon, environment
from test_docs import programs

PAGE = "migration-hyperpod.md"
NAMES = Path(__file__).with_name("hyperpod-names.txt")
#: What the page's program itself calls, or calls no second time; and adapters, whose frameworks need not be installed: such a call must fit the signature.
BOUND = (
    "session.resume",
    "session.close",
    "session.step_begin",
    "session.step_end",
    "session.steps",
    "replicad.lightning.",
    "replicad.megatron.",
    "replicad.wait_rank",
    "replicad.Session",
)


def rows() -> list[tuple[str, str]]:
    """Each name on the left, in full, with its right side."""
    out, of = [], ""
    for line in (ROOT / "docs" / PAGE).read_text().splitlines():
        if line.startswith("## "):
            of = line[3:]
        cells = re.fullmatch(r"\| (.*) \| (.*) \|", line)
        if cells and cells[1] != "there":
            out += [(_full(of, span), cells[2]) for span in re.findall(r"`([^`]+)`", cells[1])]
    return out


def _full(of: str, span: str) -> str:
    if parameter := re.fullmatch(r"(\w*)\((\w+)=\)", span):
        return f"{parameter[1] or of}.__init__({parameter[2]})"
    return of + span if span.startswith(".") else span


def spans() -> list[str]:
    """The code on right sides, each piece once."""
    return list(dict.fromkeys(s for _, right in rows() for s in re.findall(r"`([^`]+)`", right)))


def test_every_name_has_one_row() -> None:
    head, *names = NAMES.read_text().splitlines()
    assert re.search(r" at [0-9a-f]{40}, ", head)
    named = [name for name, _ in rows()]
    assert sorted(named) == sorted(names), f"without a row: {sorted(set(names) - set(named))}; no name of HyperPod's, or twice: {sorted(set(named) - set(names))}"


def test_every_row_has_a_line_or_a_reason() -> None:
    bare = [name for name, right in rows() if not re.search(r"`[^`]+`", right) and not re.fullmatch(r"- (\S+ ){2,}\S+.*", right)]
    assert bare == []


def helped(verb: str) -> str:
    """What the program says of a verb, with every flag."""
    every = ["--all"] if verb in ("run", "exec") else []
    return subprocess.run([str(ROOT / "bin" / "replicad"), *verb.split(), "--help", *every], env=environment(), capture_output=True, text=True, check=True).stdout


def test_verbs_and_flags_of_the_page_are_the_binarys() -> None:
    for span in spans():
        if re.match(r"replicad \w", span):
            _, verb, *rest = span.split()
            text = helped(verb)
            assert f"replicad {verb}" in text, span
            assert all(word.partition("=")[0] in text for word in rest), span


@pytest.mark.skipif(importlib.util.find_spec("megatron") is not None, reason="it is installed here")
def test_an_adapter_names_what_is_not_installed() -> None:
    with pytest.raises(ImportError, match=r"pip install 'megatron-core>=0\.16'"):
        replicad.megatron.keep(None, None)


def test_names_of_the_short_page_are_there() -> None:
    text = (ROOT / "docs" / "migration.md").read_text()
    found = re.findall(r"`(?:with )?((?:replicad|session)\.[\w.]+)(\(?)", text)
    assert len(found) > 20
    for name, called in found:
        root, *path = name.rstrip(".").split(".")
        to = functools.reduce(getattr, path, replicad if root == "replicad" else replicad.Session) if "megatron" not in path else None
        assert to is None or callable(to) is bool(called) or root == "replicad", f"{name}: {to}"


#: Runs the pieces in the page's program, where its training is over. A call that is only bound has its arguments taken as they are written.
RUN = """
def run_pieces(pieces, bound, names):
    import ast, inspect, logging
    names = names | {n: getattr(replicad.inprocess, n) for n in replicad.inprocess.__all__} | {"logging": logging}
    def bind(piece):
        call = ast.parse(piece, mode="eval").body
        called = isinstance(call, ast.Call)
        try:
            to = eval(ast.unparse(call.func if called else call), names)
        except ModuleNotFoundError as err:
            assert err.name in ("lightning",), err
            return
        except ImportError as err:
            assert err.name in ("lightning", "megatron-core"), err
            return
        if called:
            inspect.signature(to).bind(*call.args, **{k.arg: k.value for k in call.keywords})
    ran = 0
    for piece in pieces:
        try:
            if piece.startswith(bound):
                bind(piece)
            elif piece.startswith("with "):
                exec(piece + " optimizer.zero_grad()", names)
            else:
                value = eval(piece, names)
                assert not (inspect.ismethod(value) and piece.startswith(("session.", "call."))), "a method that is not called"
            ran += 1
        except BaseException as err:
            print(f"FAILED {piece}: {type(err).__name__}: {err}", flush=True)
    print(f"RAN {ran} PIECES", flush=True)
"""


def test_right_sides_run(daemon: Daemon) -> None:
    pieces = [s for s in spans() if not re.match(r"replicad \w", s)]
    program = programs(PAGE)["hyperpod.py"].replace("data=loader)", "data=loader, staging=True)")  # tensors in host memory can be given back only so
    text = program.replace("    session.leave()\n", f"    run_pieces({pieces!r}, {BOUND!r}, globals() | locals())\n    session.leave()\n").replace("\n\n@wrap", f"\n{RUN}\n\n@wrap")
    assert text.count("run_pieces") == 2 and "staging" in text
    out = daemon.run(text).done()
    assert not re.findall(r"FAILED .*", out)
    assert f"RAN {len(pieces)} PIECES" in out


# -- NVRx and torchft -----------------------------------------------------------------------------------------------------------

#: How a name stands in a row's left side, by how the list has it.
FORMS = {
    r"\((\w+)=\)": r"`\({0}=\)`",
    r"CallWrapper\.(\w+)": r"`CallWrapper\.{0}\b",
    r"Manager\((\w+)=\)": r"`Manager\([^`]*\b{0}=",
    r"manager\.(\w+)": r"`(?:manager\.)?{0}\(",
    r"(.*)": r"`{0}\b",
}


def others() -> list[tuple[str, str]]:
    """The rows of NVRx's and torchft's page."""
    text = (ROOT / "docs" / "migration-nvrx.md").read_text()
    return [(cells[1], cells[2]) for line in text.splitlines() if (cells := re.fullmatch(r"\| (.*) \| (.*) \|", line)) and cells[1] != "there"]


def test_names_of_nvrx_and_torchft_have_a_row() -> None:
    head, *names = NAMES.with_name("nvrx-names.txt").read_text().splitlines()
    assert len(re.findall(r" at [0-9a-f]{40}", head)) == 2
    left = "\n".join(there for there, _ in others())

    def found(name: str) -> bool:
        form, match = next((text, m) for pattern, text in FORMS.items() if (m := re.fullmatch(pattern, name)))
        return re.search(form.format(re.escape(match[1])), left) is not None

    assert [name for name in names if not found(name)] == []


def test_what_stands_beside_nvrx_and_torchft_is_there() -> None:
    """Flags are the binary's, and parameters are those of what is called."""
    right = "\n".join(here for _, here in others())
    of_run = helped("run")
    assert [flag for flag in re.findall(r"(--[a-z][a-z-]+)", re.sub(r"-- numactl.*?`", "", right)) if flag not in of_run] == []
    assert all(f"replicad {verb}" in helped(verb) for verb in ("run", "node drain", "job end"))
    for name, of in {"wrap": replicad.inprocess.wrap, "MemoryHealth": replicad.inprocess.MemoryHealth}.items():
        given = {p for call in re.findall(rf"`{name}\(([^`]*)\)`", right) for p in re.findall(r"(\w+)=", call)}
        known = set(inspect.signature(of).parameters) | {"soft", "hard"}
        assert given
        assert given <= known, given - known
    for module, names in {replicad.inprocess: ("Unhealthy", "FaultLimit", "CUDAHealth", "default_abort", "default_finalize", "Call")}.items():
        assert [n for n in names if not hasattr(module, n)] == []
    call = replicad.inprocess.Call()
    assert (call.runs, call.step, call.last) == (0, -1, None)
