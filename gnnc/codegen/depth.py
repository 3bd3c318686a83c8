"""Room for recursion over deep programs.

Planning loop nests walks expressions recursively; a chain of a thousand operations is deeper than Python's default limit. Calls between
Python functions take no C stack (since 3.11), so a higher limit is safe while one program is emitted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_users = 0
_before = 0


@contextmanager
def room_for(num_values: int) -> Iterator[None]:
    """Inside, expressions of `num_values` operations may be walked recursively. The limit is put back when the last user leaves."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = sys.getrecursionlimit()
        _users += 1
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _before + 12 * num_values))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.setrecursionlimit(_before)
