"""The bill of materials of a release."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("sbom", ROOT / "python" / "tools" / "sbom.py")
assert spec and spec.loader
sbom = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sbom)

LISTING = "replicad: go1.26.8\n\tpath\tx\n\tmod\tx\t(devel)\t\n\tdep\ta/b\tv1.0.0\th1:x=\n\tdep\tc/d\tv2.0.0\th1:y=\n\t=>\te/f\tv3.0.0\th1:z=\n\tbuild\t-trimpath=true\n"


def bill(*names: str) -> dict[str, Any]:
    components = [{"bom-ref": f"pkg:golang/{n}", "purl": f"pkg:golang/{n}?type=module", "name": n.split("@")[0], "version": n.split("@")[1]} for n in names]
    return {
        "metadata": {"component": {"bom-ref": "main"}},
        "components": components,
        "dependencies": [{"ref": "main", "dependsOn": [c["bom-ref"] for c in components]}],
        "serialNumber": "x",
    }


def test_a_missing_module_is_named() -> None:
    sbom.check("replicad", LISTING, bill("a/b@v1.0.0", "e/f@v3.0.0"))
    with pytest.raises(SystemExit, match=r"replicad contains e/f@v3\.0\.0, which"):
        sbom.check("replicad", LISTING, bill("a/b@v1.0.0", "c/d@v2.0.0"))
    with pytest.raises(SystemExit, match=r"a/b@v1\.0\.0"):
        sbom.check("replicad", LISTING, bill("a/b@v1.0.1", "e/f@v3.0.0"))
    with pytest.raises(SystemExit, match="finds no modules"):
        sbom.check("replicad", "replicad: go1.26.8\n", bill())


def test_bills_become_one() -> None:
    one = sbom.merged([bill("a/b@v1.0.0", "c/d@v2.0.0"), bill("a/b@v1.0.0", "x/y@v1.0.0")], [{"bom-ref": "pkg:pypi/torch@2", "scope": "excluded"}, {"bom-ref": "pkg:github/xx@1"}])
    assert [c["bom-ref"] for c in one["components"]] == ["pkg:github/xx@1", "pkg:golang/a/b@v1.0.0", "pkg:golang/c/d@v2.0.0", "pkg:golang/x/y@v1.0.0", "pkg:pypi/torch@2"]
    assert one["dependencies"] == [{"ref": "main", "dependsOn": ["pkg:github/xx@1", "pkg:golang/a/b@v1.0.0", "pkg:golang/c/d@v2.0.0", "pkg:golang/x/y@v1.0.0"]}]
    assert "serialNumber" not in one
    assert json.dumps(one)


def test_pins_of_the_lists() -> None:
    found = {c["name"]: c for c in sbom.pins((ROOT / "python" / "requirements-torch.txt").read_text())}
    assert {"torch", "numpy", "peft"} <= set(found)
    assert found["torch"]["purl"] == f"pkg:pypi/torch@{found['torch']['version']}"
    assert all(len(c["properties"][0]["value"]) >= 64 for c in found.values())


def test_xxhash() -> None:
    assert sbom.xxhash((ROOT / "libreplicad" / "third_party" / "xxhash" / "xxhash.h").read_text())["version"].count(".") == 2


def test_modules_of_the_real_program() -> None:
    if not shutil.which("go"):
        pytest.skip("go is missing")
    listing = subprocess.run(["go", "version", "-m", str(ROOT / "bin" / "replicad")], check=True, capture_output=True, text=True).stdout
    assert any(m.startswith("github.com/hashicorp/raft@") for m in sbom.modules(listing))
