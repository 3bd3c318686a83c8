"""Reductions across lanes, arranged at compile time.

The input is a list of registers whose lanes carry *labels*: lanes with equal labels are to be added (or maximised). Registers are
merged in a fixed order: equal ones lane by lane, then pairs of registers by one shuffle a side and one addition (as a transposing
reduction does it, so 8 rows of 8 lanes cost 7 additions and not 24), at last single lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from .emit_text import FunctionText
from .lanes import Lanes, Reg, shuffle


class Labelled(NamedTuple):
    """A register and the label of each lane."""

    text: str
    labels: tuple[int, ...]

    @property
    def width(self) -> int:
        return len(self.labels)


Combine = Callable[[Lanes, Reg, Reg], Reg]


def fold_lanes(fn: FunctionText, scalar: str, items: list[Labelled], combine: Combine) -> list[Labelled]:
    """Registers in which every label occurs once, together holding each label's reduction."""

    def join(a: str, b: str, width: int) -> str:
        return combine(Lanes(fn, width), Reg(a, scalar), Reg(b, scalar)).text

    pending = _merge_equal(items, join)
    done: list[Labelled] = []
    while pending:
        width = max(i.width for i in pending)
        here = [i for i in pending if i.width == width]
        rest = [i for i in pending if i.width < width]
        finer = {label for i in rest for label in i.labels}
        unique = [i for i in here if len(set(i.labels)) == width]
        if width > 1:  # registers that overlap without being alike meet lane by lane
            times = Counter(label for i in here for label in set(i.labels))
            finer |= {label for i in unique for label in i.labels if times[label] > 1}
        folding = [i for i in here if len(set(i.labels)) < width]
        for item in unique:
            if width > 1 and finer & set(item.labels):  # falls apart to meet them
                rest += [Labelled(shuffle(fn, item.text, "poison", scalar, width, [n]), (label,)) for n, label in enumerate(item.labels)]
            else:
                done.append(item)
        by_step: dict[int, list[Labelled]] = {}
        for item in folding:
            step = _step(item.labels)
            if step == 0:
                rest += [Labelled(shuffle(fn, item.text, "poison", scalar, width, [n]), (label,)) for n, label in enumerate(item.labels)]
            else:
                by_step.setdefault(step, []).append(item)
        for step, members in sorted(by_step.items()):
            alone = [m for m in members if finer & set(m.labels)]
            paired = [m for m in members if not finer & set(m.labels)]
            while len(paired) > 1:
                a, b = paired.pop(0), paired.pop(0)
                rest.append(_pair(fn, scalar, a, b, step, join))
            for item in alone + paired:
                rest.append(_halve(fn, scalar, item, step, join))
        pending = _merge_equal(rest, join)
    return done


def _merge_equal(items: list[Labelled], join: Callable[[str, str, int], str]) -> list[Labelled]:
    """Registers with the same labels combined as a balanced tree, in order."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for item in items:
        groups.setdefault(item.labels, []).append(item.text)
    out = []
    for labels, texts in groups.items():
        while len(texts) > 1:
            pairs = [join(a, b, len(labels)) for a, b in zip(texts[::2], texts[1::2], strict=False)]
            texts = pairs + texts[len(pairs) * 2 :]
        out.append(Labelled(texts[0], labels))
    return out


def _step(labels: tuple[int, ...]) -> int:
    """A power of two such that lanes ``i`` and ``i ^ step`` share their label for every i; 0 if there is none."""
    step = 1
    while step < len(labels):
        if all(labels[i] == labels[i ^ step] for i in range(len(labels)) if i ^ step < len(labels)) and len(labels) % (2 * step) == 0:
            return step
        step *= 2
    return 0


def _order(width: int, step: int) -> list[int]:
    """Lanes whose bit ``step`` is clear."""
    return [i for i in range(width) if not i & step]


def _pair(fn: FunctionText, scalar: str, a: Labelled, b: Labelled, step: int, join: Callable[[str, str, int], str]) -> Labelled:
    width = a.width
    block = min(4, width)  # stay within 128 bits where possible: one in-lane shuffle
    lo: list[int] = []
    if step < block:
        for start in range(0, width, block):
            half = [start + i for i in range(block) if not i & step]
            lo += half + [width + i for i in half]
    else:
        half = _order(width, step)
        lo = half + [width + i for i in half]
    hi = [i + step for i in lo]
    labels = tuple((a.labels + b.labels)[i] for i in lo)
    x = shuffle(fn, a.text, b.text, scalar, width, lo)
    y = shuffle(fn, a.text, b.text, scalar, width, hi)
    return Labelled(join(x, y, width), labels)


def _halve(fn: FunctionText, scalar: str, a: Labelled, step: int, join: Callable[[str, str, int], str]) -> Labelled:
    # The widest step keeps halves whole: lower half with upper half, where the labels allow it.
    width = a.width
    if all(a.labels[i] == a.labels[i + width // 2] for i in range(width // 2)) and width % 2 == 0:
        step = width // 2
    lo = _order(width, step)
    x = shuffle(fn, a.text, "poison", scalar, width, lo)
    y = shuffle(fn, a.text, "poison", scalar, width, [i + step for i in lo])
    return Labelled(join(x, y, width // 2), tuple(a.labels[i] for i in lo))
