"""What a thread switches on for a while, and an exception that strikes as it is switched off leaves on."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["modes"]

_DEVICES = ("cpu", "cuda")


def modes() -> Callable[[], None]:
    """Notes gradient mode, autocast and function modes (a default device) of this thread; the result brings them back. A restart may be raised
    anywhere, on the first line of an ``__exit__`` too."""
    torch = sys.modules.get("torch")
    if torch is None:
        return lambda: None
    grad = torch.is_grad_enabled()
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    cache, depth = torch.is_autocast_cache_enabled(), torch._C._len_torch_function_stack()
    nesting = _nesting(torch)

    def back() -> None:
        torch.set_grad_enabled(grad)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)
        while _nesting(torch) > nesting:
            torch.autocast_decrement_nesting()
        if nesting == 0:
            torch.clear_autocast_cache()
        while torch._C._len_torch_function_stack() > depth:
            torch._C._pop_torch_function_stack()

    return back


def _nesting(torch: object) -> int:
    """How many autocasts the thread is in."""
    torch.autocast_increment_nesting()  # type: ignore[attr-defined]
    return int(torch.autocast_decrement_nesting())  # type: ignore[attr-defined]
