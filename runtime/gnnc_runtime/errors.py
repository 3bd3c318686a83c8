"""Errors of the runtime. Each is also the built-in exception a caller would expect."""

from __future__ import annotations


class GnncError(Exception):
    """Base of every error that gnnc raises on purpose."""


class GraphError(GnncError, ValueError):
    """A graph that cannot be: wrong shape, counts that do not fit."""


class GraphTypeError(GnncError, TypeError):
    """Something of the wrong type where a graph or a part of one was expected."""


class IndexRangeError(GnncError, IndexError):
    """A node number that is negative or not smaller than its count."""


class ImmutableError(GnncError, AttributeError):
    """An attribute of something immutable was assigned or deleted."""
