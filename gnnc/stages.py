"""Recording the stages of a compilation: for dumps (`GNNC_DUMP`, `gnnc.dump`) and for `explain`.

Every stage is saved under its number and name: ``00-traced.gir``, ``01-simplified.gir`` ... ``09-gatv2_0.ll``. The text is what
the parser reads back, so a dumped stage can be fed to ``gnnc opt``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gnnc.ir.core import Func
from gnnc.ir.printer import print_func, print_plan
from gnnc.ir.sweep import PlanSpec


@dataclass
class Stages:
    """The texts of one compilation in order: (file name, text)."""

    entries: list[tuple[str, str]] = field(default_factory=list)
    folder: Path | None = None  # where they were dumped first: later stages of the same compilation join them

    def record(self, name: str, what: Func | PlanSpec | str, ext: str = "gir") -> None:
        text = what if isinstance(what, str) else print_plan(what) if isinstance(what, PlanSpec) else print_func(what)
        self.entries.append((f"{len(self.entries):02d}-{name}.{ext}", text if text.endswith("\n") else text + "\n"))

    def text(self, name: str) -> str:
        """The last stage called `name` (without number and extension). KeyError when there is none."""
        for file, text in reversed(self.entries):
            if file.split("-", 1)[1].rsplit(".", 1)[0] == name:
                return text
        raise KeyError(f"no stage {name!r}; there are {', '.join(self.names())}")

    def names(self) -> list[str]:
        return [file.split("-", 1)[1].rsplit(".", 1)[0] for file, _ in self.entries]

    def write(self, folder: Path) -> None:
        """Writes every stage; files of an earlier compilation in the same folder are replaced one by one."""
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in self.entries:
            (folder / file).write_text(text, encoding="utf-8")


_dump_to: list[Path] = []


@contextmanager
def dump(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Every layer compiled inside writes its stages to ``folder/<layer>-<number>/``.

    A layer whose code comes from a cache writes them too: stages are computed from the program, never read from the cache.
    """
    path = Path(folder)
    _dump_to.append(path)
    try:
        yield path
    finally:
        _dump_to.pop()


def dump_folder() -> Path | None:
    """Where stages go now: the innermost `dump`, else ``GNNC_DUMP``, else nowhere."""
    if _dump_to:
        return _dump_to[-1]
    env = os.environ.get("GNNC_DUMP")
    return Path(env) if env else None


def write_dump(layer: str, stages: Stages) -> None:
    """Writes `stages` if dumping is on, in a folder of their own: ``<layer>``, ``<layer>-1`` and so on for later signatures."""
    root = dump_folder()
    if root is None or not stages.entries:
        return
    if stages.folder is None or stages.folder.parent != root:
        root.mkdir(parents=True, exist_ok=True)
        n = 0
        while True:
            stages.folder = root / (layer if n == 0 else f"{layer}-{n}")
            try:
                stages.folder.mkdir()
                break
            except FileExistsError:
                n += 1
    stages.write(stages.folder)
