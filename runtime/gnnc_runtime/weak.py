"""A map from objects to what was derived from them: keyed by identity, forgotten with the object.

Tensors and graphs compare by value or not at all, so neither a dict nor a WeakKeyDictionary may hold them as keys.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class WeakIdMap(Generic[V]):
    """``get`` and ``set`` by the identity of a key; an entry goes when its key does. A value must not hold its key strongly.

    A new object at an old address never matches: the stored weak reference is compared. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, key: object) -> V | None:
        """The value of `key`, or None."""
        found = self._entries.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def set(self, key: object, value: V) -> V:
        """Stores and returns `value`."""
        at, entries = id(key), self._entries

        def forget(ref: weakref.ref[Any]) -> None:
            found = entries.get(at)
            if found is not None and found[0] is ref:  # not one that has taken the address since
                del entries[at]

        entries[at] = (weakref.ref(key, forget), value)
        return value

    def __len__(self) -> int:
        return len(self._entries)
