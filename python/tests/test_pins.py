"""The lists of packages that are installed: each is what its wish list asks for, whole, and with hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]
LISTS = sorted(p.stem for p in FOLDER.glob("requirements-*.in"))


def wished(name: str) -> dict[str, str]:
    lines = (FOLDER / f"{name}.in").read_text().splitlines()
    return dict(line.split(";")[0].strip().split("==") for line in lines if line and not line.startswith("#"))


def listed(name: str) -> list[tuple[str, str, str]]:
    """Package, version and the rest of each entry."""
    text = (FOLDER / f"{name}.txt").read_text()
    return re.findall(r"^([a-z0-9][a-z0-9._-]*)==(\S+)(.*(?:\n .*)*)", text, re.M)


def test_there_are_lists() -> None:
    assert {
        "requirements-deepspeed",
        "requirements-dev",
        "requirements-frameworks",
        "requirements-lock",
        "requirements-megatron",
        "requirements-torch",
        "requirements-torch-2.6",
    } == set(LISTS)


@pytest.mark.parametrize("name", LISTS)
def test_list_has_what_is_wished(name: str) -> None:
    versions = {(package, version) for package, version, _ in listed(name)}
    missing = set(wished(name).items()) - versions
    assert not missing, f"{missing} of {name}.in: run `make py-lock`"


@pytest.mark.parametrize("name", LISTS)
def test_each_entry_has_hashes(name: str) -> None:
    entries = listed(name)
    text = (FOLDER / f"{name}.txt").read_text()
    assert len(entries) == len(re.findall(r"^[^\s#]", text, re.M)) > 0
    for package, version, rest in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", rest), f"{package}=={version} in {name}.txt"


def test_tools_and_torch_agree() -> None:
    """Both lists go into one environment."""
    tools = {package: version for package, version, _ in listed("requirements-dev")}
    both = [(package, version, tools[package]) for package, version, _ in listed("requirements-torch") if tools.get(package, version) != version]
    assert not both
