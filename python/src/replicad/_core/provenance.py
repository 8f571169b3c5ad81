"""Which program runs here, and of which releases."""

from __future__ import annotations

import platform
import sys

from .remarks import TEXT
from .version import __version__

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """The releases of Python, replicad and PyTorch, where that is loaded, and the program and its arguments, as far as remarks hold them. Generations that are
    encrypted are written without the arguments."""
    said = {"python": platform.python_version(), "replicad": __version__, "program": sys.argv[0]}
    if arguments := " ".join(sys.argv[1:]):
        said["arguments"] = arguments
    if (torch := sys.modules.get("torch")) is not None:
        said["torch"] = torch.__version__
    return {name: text.encode(errors="replace")[:TEXT].decode(errors="ignore") for name, text in said.items()}
