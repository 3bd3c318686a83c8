"""Compiled layers as torch operators, with fake kernels and autograd, so that `torch.compile` and `opcheck` see ordinary operations.

A layer of one signature is ``gnnc::<name>_<digest>``: its tensors, the forms of the graph as tensors (those nobody reads are None), the
counts as SymInt; it returns the layer's results, then the values saved for the backward. The backward is an operator of its own,
``..._backward``, defined when it is first needed, whose own derivative raises one clear error.

Registered by hand: a kernel for the key ``Autograd`` that applies one `autograd.Function`. Measured on torch 2.13 for 10 tensors, 3 counts
and 2 results, with and without a gradient: 16 and 8 us, against 58 and 9 for `torch.library.register_autograd`, 63 and 13 for `custom_op`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .form_graph import COUNT_ARGS, FORM_ARGS, FormArgs, form_args, graph_of_args, owner_of_args, remember
from .plan import BufferSpec, Plan
from .tables import TORCH_DTYPES, GraphForms, shape_of
from .weak import WeakIdMap


class PlanExecutable(Protocol):
    """A plan ready to run on one kind of device: `Executable`, `CudaExecutable`. ``dispatch_key``: torch's name for the device."""

    plan: Plan
    dispatch_key: str

    @property
    def sides(self) -> tuple[str, ...]: ...
    def run(self, graph: GraphForms, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]: ...


# Lives as long as the process: so do operators. torch leaves it untyped.
_library: Any = torch.library.Library("gnnc", "FRAGMENT")  # type: ignore[no-untyped-call]
_lock = threading.RLock()
_layers: dict[str, _Layer] = {}

NO_SECOND = (
    "gnnc: second derivatives are not supported: the backward of {name} was differentiated (a gradient penalty, create_graph=True or a "
    "Hessian does this); compute that part with plain torch operations"
)

NO_FORWARD_MODE = (
    "gnnc: forward-mode derivatives are not supported: {name} was given a dual tensor (torch.func.jvp or torch.autograd.forward_ad); use "
    "reverse mode, or compute that part with plain torch operations"
)


def _tangent(t: Tensor) -> Tensor | None:
    found: Tensor | None = forward_ad.unpack_dual(t).tangent  # type: ignore[no-untyped-call]
    return found


def grad_mask(tensors: Sequence[Tensor]) -> tuple[bool, ...]:
    """Which tensors want a gradient now: none where grad mode is off."""
    if not torch.is_grad_enabled():
        return (False,) * len(tensors)
    return tuple(t.requires_grad for t in tensors)


def autocast_inputs(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Under autocast, floating tensors except f64 in the autocast dtype of their device, as torch's own matmul-like operations take
    them (differentiable); else the tensors as they are."""
    return tuple(_autocast(t) for t in tensors)


def _autocast(t: Tensor) -> Tensor:
    kind = t.device.type
    if not t.is_floating_point() or t.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return t
    return t.to(torch.get_autocast_dtype(kind))


def _define(name: str, executable: PlanExecutable, autograd: Callable[..., Any] | None) -> Callable[..., Any]:
    """Registers a plan as the operator ``gnnc::name``; ``autograd`` is its kernel above the devices, None: not differentiable."""
    plan = executable.plan
    n = len(plan.inputs)
    outputs = [plan.buffer(o) for o in plan.outputs]
    tensors = [f"Tensor x{i}" for i in range(n)] + [f"Tensor? {a}" for a in FORM_ARGS]
    returns = ", ".join(["Tensor"] * len(outputs))
    schema = f"{name}({', '.join([*tensors, *(f'SymInt {c}' for c in COUNT_ARGS)])}) -> {returns if len(outputs) == 1 else f'({returns})'}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    unpack = len(outputs) == 1

    def run(*args: Any) -> Tensor | tuple[Tensor, ...]:
        out = executable.run(graph_of_args(args[n:]), args[:n])
        return out[0] if unpack else out

    def fake(*args: Any) -> Tensor | tuple[Tensor, ...]:
        device = next((a.device for a in args if isinstance(a, Tensor)), None)
        out = tuple(torch.empty(shape_of(b, *args[-3:]), dtype=TORCH_DTYPES[b.dtype], device=device) for b in outputs)
        return out[0] if unpack else out

    _library.impl(name, run, executable.dispatch_key)
    torch.library.register_fake(f"gnnc::{name}", fake, lib=_library)
    _library.impl(name, torch.library.fallthrough_kernel if autograd is None else autograd, "Autograd")
    for key in ("AutocastCPU", "AutocastCUDA"):
        _library.impl(name, torch.library.fallthrough_kernel, key)
    op: Callable[..., Any] = getattr(torch.ops.gnnc, name).default
    return op


class _Layer:
    """A registered operator and its backward."""

    def __init__(
        self,
        name: str,
        forward: PlanExecutable,
        num_results: int,
        mask: tuple[bool, ...],
        backward: Callable[[], PlanExecutable] | None,
        backward_inputs: tuple[str, ...] | None,
        constant_results: frozenset[str],
    ) -> None:
        self.constant_results = constant_results
        self.name, self.forward, self.num_results, self.mask = name, forward, num_results, mask
        self._make_backward, self._backward_inputs = backward, backward_inputs
        self._lock = threading.RLock()
        self._backward: tuple[PlanExecutable, Callable[..., Any]] | None = None
        self._saved: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self.op: Callable[..., Any] = _define(name, forward, _autograd_kernel(self) if any(mask) else None)

    def backward(self) -> tuple[PlanExecutable, Callable[..., Any]]:
        """The backward and its operator, made now if need be."""
        with self._lock:
            if self._backward is None:
                assert self._make_backward is not None
                executable = self._make_backward()
                name = f"{self.name}_backward"
                self._backward = executable, _define(name, executable, _second_derivative_kernel(name, len(executable.plan.inputs)))
            return self._backward

    def saved(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers of the inputs and of the outputs that the backward reads."""
        if self._saved is None:
            plan = self.forward.plan
            names = self.backward()[0].plan.inputs if self._backward_inputs is None else self._backward_inputs
            inputs = tuple(i for i, n in enumerate(plan.inputs) if n in names)
            outputs = tuple(i for i, n in enumerate(plan.outputs) if n in names and n not in plan.inputs)
            self._saved = inputs, outputs
        return self._saved

    def result(self, i: int) -> BufferSpec:
        return self.forward.plan.buffer(self.forward.plan.outputs[i])


def _autograd_kernel(layer: _Layer) -> Callable[..., Any]:
    """The kernel of a layer's operator above the devices."""
    plan, mask = layer.forward.plan, layer.mask
    n, num_outputs = len(plan.inputs), len(plan.outputs)
    fixed = tuple(
        i
        for i, o in enumerate(plan.outputs)
        if i >= layer.num_results or not TORCH_DTYPES[plan.buffer(o).dtype].is_floating_point or o in layer.constant_results
    )
    nones = (None,) * (len(FORM_ARGS) + len(COUNT_ARGS))

    def forward(ctx: Any, *args: Any) -> Any:
        if any(wants and not m for wants, m in zip(ctx.needs_input_grad, mask, strict=False)):
            raise RuntimeError(f"gnnc: {layer.name} was compiled without the gradient of an input that now requires one")
        inputs, outputs = layer.saved()
        with torch._C._AutoDispatchBelowAutograd():
            out = layer.op(*args)
        results = out if num_outputs > 1 else (out,)
        ctx.save_for_backward(*[args[i] for i in inputs], *[results[i] for i in outputs])
        ctx.mark_non_differentiable(*[results[i] for i in fixed])
        ctx.set_materialize_grads(False)
        # Forms are immutable inputs: no version to check, and a backward may need one that the forward does not.
        ctx.graph, ctx.form_args = owner_of_args(args[n:]), args[n:]
        ctx.device = args[0].device if n else None
        return out

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        executable, op = layer.backward()
        inputs, outputs = layer.saved()
        names = [*(plan.inputs[i] for i in inputs), *(plan.outputs[i] for i in outputs)]
        known: dict[str, Tensor] = dict(zip(names, ctx.saved_tensors, strict=True))
        forms = ctx.form_args if ctx.graph is None else _args_of(ctx.graph, executable.sides)
        for i in range(layer.num_results):
            name = f"grad_{plan.outputs[i]}"
            if name in executable.plan.inputs and name not in known:
                known[name] = _upstream(grads[i], layer.result(i), forms, ctx.device)
        tensors = [known[name] for name in executable.plan.inputs]
        if torch.is_grad_enabled():
            found = op(*tensors, *forms)
        else:  # nothing to record: straight to the device
            with torch._C._AutoDispatchBelowAutograd():
                found = op(*tensors, *forms)
        by_name = dict(zip(executable.plan.outputs, found if len(executable.plan.outputs) > 1 else (found,), strict=True))
        return (*(by_name[f"d_{name}"] if m else None for name, m in zip(plan.inputs, mask, strict=True)), *nones)

    function: Any = type(
        f"{layer.name}_function", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )

    def kernel(*args: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args[:n]):
            return function.apply(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return layer.op(*args)

    return kernel


def _upstream(grad: Tensor | None, result: BufferSpec, forms: FormArgs, device: Any) -> Tensor:
    """The upstream gradient of a result; zeros where the loss does not hang on it."""
    if grad is not None:
        return grad
    num_src, num_dst, num_edges = forms[6:]
    return torch.zeros(shape_of(result, num_src, num_dst, num_edges), dtype=TORCH_DTYPES[result.dtype], device=device)  # type: ignore[arg-type]


def _second_derivative_kernel(name: str, num_inputs: int) -> Callable[..., Any]:
    """The kernel of a backward operator above the devices: differentiating it raises."""

    def forward(ctx: Any, *args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op()(*args)

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise RuntimeError(NO_SECOND.format(name=name.removesuffix("_backward")))

    def op() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(torch.ops.gnnc, name).default
        return found

    function: Any = type(
        f"{name}_function", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )

    def kernel(*args: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args[:num_inputs]):
            return function.apply(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return op()(*args)

    return kernel


# Operator arguments of a graph, by the sides read.
_args: dict[tuple[str, ...], WeakIdMap[FormArgs]] = {s: WeakIdMap() for s in ((), ("dst",), ("src",), ("dst", "src"))}


def _args_of(graph: GraphForms, sides: tuple[str, ...]) -> FormArgs:
    found = _args[sides].get(graph)
    if found is None:
        found = form_args(graph, sides)
        remember(graph, found)
        _args[sides].set(graph, found)
    return found


class LayerOperator:
    """A compiled layer of one signature as a torch operator. Making one twice gives the same operator; thread-safe.

    ``digest``: names the signature in full (wanted gradients included). ``forward``: its plan takes the layer's tensors and returns
    ``num_results`` results, then values to save. ``mask``: which tensors want gradients. ``backward``: makes the backward when it is
    first needed; its plan takes any of the forward's inputs and outputs by name and ``grad_<result>``, and returns ``d_<input>`` for the
    masked inputs. ``backward_inputs``: the names it takes, so that the forward knows what to save before the backward exists (None: the
    backward is made at the first forward that records). ``constant_results``: results that hang on no masked input and so require no
    gradient.

    Raises ValueError when the name is taken by another plan or ``mask`` does not fit.
    """

    def __init__(
        self,
        name: str,
        digest: str,
        forward: PlanExecutable,
        num_results: int,
        mask: Sequence[bool],
        backward: Callable[[], PlanExecutable] | None = None,
        backward_inputs: Sequence[str] | None = None,
        constant_results: Sequence[str] = (),
    ) -> None:
        mask = tuple(mask)
        if len(mask) != len(forward.plan.inputs):
            raise ValueError(f"{name}: {len(mask)} flags for {len(forward.plan.inputs)} inputs")
        if any(mask) and backward is None:
            raise ValueError(f"{name}: gradients are wanted but there is no backward")
        op_name = f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{digest}"
        with _lock:
            found = _layers.get(op_name)
            if found is None:
                names = None if backward_inputs is None else tuple(backward_inputs)
                found = _layers[op_name] = _Layer(op_name, forward, num_results, mask, backward, names, frozenset(constant_results))
        if (found.forward.plan, found.mask, found.num_results) != (forward.plan, mask, num_results):
            raise ValueError(f"operator gnnc::{op_name} exists with another plan")
        self._layer, self._op, self._count, self.mask = found, found.op, num_results, mask
        self._single, self._records = len(forward.plan.outputs) == 1, any(mask)
        self._sides = forward.sides
        # A form by which the backward recognises the graph, also where the forward reads none.
        self._eager_sides = self._sides or (("dst",) if self._records else ())
        self.qualname = f"gnnc::{op_name}"

    @property
    def forward(self) -> PlanExecutable:
        return self._layer.forward

    @property
    def backward(self) -> PlanExecutable:
        """The backward, made now if need be."""
        return self._layer.backward()[0]

    def __call__(self, graph: GraphForms, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The layer's results. ``tensors`` as the forward plan's inputs; see `Executable.run`.

        Raises RuntimeError when a tensor outside ``mask`` requires a gradient while grad mode is on.
        """
        if torch.compiler.is_compiling():  # the backward is traced from tensors alone, so it gets both forms
            args = form_args(graph, ("dst", "src") if self._records else self._sides)
        else:
            args = _args_of(graph, self._eager_sides)
        if forward_ad._current_level >= 0 and any(_tangent(t) is not None for t in tensors):
            raise RuntimeError(NO_FORWARD_MODE.format(name=self.qualname))
        if not self._records and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise RuntimeError(f"{self.qualname} was compiled without gradients, but an input requires one")
        out = self._op(*tensors, *args)
        return (out,) if self._single else out[: self._count]
