"""From the tensors an operator gets back to the graph they belong to.

A torch operator takes tensors only, but what is worth keeping (degrees, tasks, launches) belongs to a graph. Forms of a known graph are
recognised by identity; tensors of unknown origin (a compiled program's inputs) are checked once and make a graph of their own, kept as
long as they live and are not edited.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from .forms import Form
from .tables import GraphForm, GraphForms
from .weak import WeakIdMap

SIDES = ("dst", "src")
FORM_ARGS = ("in_indptr", "in_indices", "in_edge_ids", "out_indptr", "out_indices", "out_edge_ids")
COUNT_ARGS = ("num_src", "num_dst", "num_edges")
FormArgs = tuple[Tensor | int | None, ...]  # of FORM_ARGS and COUNT_ARGS


class FormGraph:
    """A graph that is its forms alone. Raises ValueError for forms that do not fit the counts or each other."""

    def __init__(self, args: FormArgs) -> None:
        self.num_src, self.num_dst, self.num_edges = (int(n) for n in args[6:])  # type: ignore[arg-type]
        # Aliases of the tensors: a graph that held the tensors themselves would keep its own key alive.
        tensors = [t.detach() if isinstance(t, Tensor) else None for t in args[:6]]
        self._in = self._form("in", tensors[:3], self.num_dst, self.num_src)
        self._out = self._form("out", tensors[3:], self.num_src, self.num_dst)
        self._degrees: dict[tuple[str, torch.dtype], Tensor] = {}

    def _form(self, name: str, tensors: list[Tensor | None], rows: int, others: int) -> Form | None:
        if any(t is None for t in tensors):
            return None
        indptr, indices, edge_ids = (t.contiguous() for t in tensors if t is not None)
        e = self.num_edges
        good = (
            indptr.dtype == torch.int64
            and indices.dtype == edge_ids.dtype
            and indices.dtype in (torch.int32, torch.int64)
            and indptr.shape == (rows + 1,)
            and indices.shape == edge_ids.shape == (e,)
            and int(indptr[0]) == 0
            and int(indptr[-1]) == e
            and bool((indptr[1:] >= indptr[:-1]).all())
            and _within(indices, others)
            and _within(edge_ids, e)
        )
        if not good:
            raise ValueError(
                f"gnnc: the {name} form does not fit a graph of {self.num_src} sources, {self.num_dst} destinations and {e} edges"
            )
        return Form(indptr, indices, edge_ids)

    def _need(self, form: Form | None, name: str) -> Form:
        if form is None:
            raise ValueError(f"gnnc: this operator reads the graph's {name} form: pass {name}_indptr, {name}_indices and {name}_edge_ids")
        return form

    def in_form(self) -> GraphForm:
        return self._need(self._in, "in")

    def out_form(self) -> GraphForm:
        return self._need(self._out, "out")

    def in_degree(self, dtype: torch.dtype) -> Tensor:
        return self._degree("in", self.in_form(), dtype)

    def out_degree(self, dtype: torch.dtype) -> Tensor:
        return self._degree("out", self.out_form(), dtype)

    def _degree(self, end: str, form: GraphForm, dtype: torch.dtype) -> Tensor:
        found = self._degrees.get((end, dtype))
        if found is None:
            found = self._degrees[end, dtype] = form.indptr.diff().to(dtype)
        return found


def _within(t: Tensor, limit: int) -> bool:
    return t.numel() == 0 or (int(t.min()) >= 0 and int(t.max()) < limit)


# By side and indptr: the graph, and the identity of the two tensors that go with it (which live as long as the graph).
_owners: dict[str, WeakIdMap[tuple[weakref.ref[GraphForms], tuple[int, int]]]] = {side: WeakIdMap() for side in SIDES}
_strangers: WeakIdMap[tuple[tuple[object, ...], FormGraph]] = WeakIdMap()


def form_args(graph: GraphForms, sides: tuple[str, ...]) -> FormArgs:
    """The operator arguments of a graph: the forms of `sides`, None for the others, and the counts."""
    out: list[Tensor | int | None] = []
    for side in SIDES:
        if side in sides:
            form = graph.in_form() if side == "dst" else graph.out_form()
            out += [form.indptr, form.indices, form.edge_ids]
        else:
            out += [None, None, None]
    return (*out, graph.num_src, graph.num_dst, graph.num_edges)


def remember(graph: GraphForms, args: FormArgs) -> None:
    """Lets `graph_of_args` recognise the forms in `args` as those of `graph`."""
    ref = weakref.ref(graph)
    for side, at in zip(SIDES, (0, 3), strict=True):
        if args[at] is not None:
            _owners[side].set(args[at], (ref, (id(args[at + 1]), id(args[at + 2]))))


def owner_of_args(args: FormArgs) -> GraphForms | None:
    """The known graph whose forms these are, or None."""
    owner = None
    for side, at in zip(SIDES, (0, 3), strict=True):
        if args[at] is None:
            continue
        found = _owners[side].get(args[at])
        graph = found[0]() if found is not None and found[1] == (id(args[at + 1]), id(args[at + 2])) else None
        if graph is None or (owner is not None and graph is not owner):
            return None
        owner = graph
    if owner is not None and args[6:] == (owner.num_src, owner.num_dst, owner.num_edges):
        return owner
    return None


def graph_of_args(args: FormArgs) -> GraphForms:
    """The graph of an operator's arguments. ValueError for tensors that are no graph."""
    graph = owner_of_args(args)
    if graph is not None:
        return graph
    key = args[0] if args[0] is not None else args[3]
    if key is None:  # maps over rows alone
        return FormGraph(args)
    content = tuple((id(t), t.data_ptr(), _version(t)) if isinstance(t, Tensor) else t for t in args)
    known = _strangers.get(key)
    if known is None or known[0] != content:
        known = _strangers.set(key, (content, FormGraph(args)))
    return known[1]


def _version(t: Tensor) -> int:
    return -1 if t.is_inference() else t._version
