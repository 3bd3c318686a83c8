"""The command line: ``gnnc opt`` runs passes on IR text, ``gnnc passes`` lists them.

Exit codes: 0 done, 1 the input is wrong (text, types, a broken pass), 2 the command line is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gnnc.backends import Backend, CpuBackend, CudaBackend
from gnnc.ir.parser import IRParseError, parse_module
from gnnc.ir.printer import print_func, print_plan
from gnnc.ir.types import I32, TypeRuleError
from gnnc.ir.verifier import VerifyError, verify
from gnnc.passes.classify import classify
from gnnc.passes.fuse import fuse
from gnnc.passes.manager import PASSES, BrokenPassError, PassManager, parse_pipeline
from gnnc.passes.schedule import schedule

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A compiler for graph neural network layers.")

PLAN = "fuse"  # the last step of a pipeline may be this: it leaves functions and prints a plan


@app.command()
def opt(
    file: Annotated[Path, typer.Argument(help="IR text (.gir); - for standard input")],
    passes: Annotated[str, typer.Option(help="comma-separated passes, in order; 'fuse' may come last")] = "",
    emit: Annotated[str, typer.Option(help="after fuse: print the kernels, 'llvm' or 'cuda', instead of the plan")] = "",
    arch: Annotated[str, typer.Option(help="GPU architecture for --emit=cuda")] = "sm_90",
) -> None:
    """Reads IR text, runs passes, prints the result."""
    backends: dict[str, Backend] = {"llvm": CpuBackend(), "cuda": CudaBackend(arch)}
    if emit and emit not in backends:
        raise typer.BadParameter(f"{emit!r} is neither llvm nor cuda", param_hint="--emit")
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        names = passes.strip()
        to_plan = names == PLAN or names.endswith("," + PLAN)
        if to_plan:
            names = names[: -len(PLAN)].rstrip(",")
        for func in parse_module(text):
            verify(func)
            out = PassManager(parse_pipeline(names)).run(func) if names else func
            if not to_plan:
                if emit:
                    raise ValueError("--emit needs fuse as the last pass")
                typer.echo(print_func(out))
                continue
            plan = schedule(classify(fuse(out)))
            if emit:
                for name, kernel in backends[emit].lower(plan, I32).kernels.items():
                    typer.echo(f"// {name}\n{getattr(kernel, 'program', kernel.text)}")
            else:
                typer.echo(print_plan(plan))
    except (OSError, IRParseError, TypeRuleError, VerifyError, BrokenPassError, ValueError) as e:
        typer.echo(f"gnnc opt: {e}", err=True)
        raise typer.Exit(1) from None


@app.command("passes")
def list_passes() -> None:
    """Lists the passes that ``opt --passes`` takes."""
    for name in [*PASSES, PLAN]:
        typer.echo(name)


if __name__ == "__main__":
    app()
