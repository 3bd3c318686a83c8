"""The tree's own rules: what the runtime may import, how large a file may grow, what a wheel holds, what an import loads."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMPILER_ONLY = {"gnnc", "lark", "llvmlite", "networkx", "numba", "rich", "typer"}
MAX_LINES = 700


def sources(*folders: str) -> list[Path]:
    return sorted(p for f in folders for p in (ROOT / f).rglob("*.py"))


def imported(text: str) -> Iterator[str]:
    """Root names of all absolute imports, those inside functions too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (a.name.split(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def test_imports_are_found_at_any_depth():
    text = "import os.path, lark\ndef f():\n    from gnnc.ir import core\n    from . import plan\n"
    assert list(imported(text)) == ["os", "lark", "gnnc"]


def test_the_runtime_names_no_part_of_the_compiler():
    files = sources("runtime/gnnc_runtime")
    assert files
    found = {f"{p.relative_to(ROOT)}: {n}" for p in files for n in imported(p.read_text("utf-8")) if n in COMPILER_ONLY}
    assert found == set()


def test_no_file_has_outgrown_its_idea():
    sizes = {str(p.relative_to(ROOT)): len(p.read_text("utf-8").splitlines()) for p in sources("gnnc", "runtime", "examples")}
    assert {name: n for name, n in sizes.items() if n > MAX_LINES} == {}


def test_every_file_says_its_idea():
    missing = [
        str(p.relative_to(ROOT))
        for p in sources("gnnc", "runtime", "examples")
        if (tree := ast.parse(p.read_text("utf-8"))).body and ast.get_docstring(tree) is None
    ]
    assert missing == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that this tree builds to."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], cwd=ROOT, check=True, capture_output=True)
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_a_wheel_holds_every_file_of_both_packages(wheel: zipfile.ZipFile):
    inside = {n for n in wheel.namelist() if ".dist-info/" not in n}
    expected = set()
    for base, package in ((ROOT, "gnnc"), (ROOT / "runtime", "gnnc_runtime")):
        for p in (base / package).rglob("*"):
            if p.suffix in (".py", ".lark", ".cuh", ".typed"):
                expected.add(p.relative_to(base).as_posix())
    assert {"gnnc/ir/grammar.lark", "gnnc/py.typed", "gnnc_runtime/py.typed", "gnnc_runtime/plan.py"} <= expected
    assert inside == expected


def test_a_wheel_needs_the_runtime_alone(wheel: zipfile.ZipFile):
    [name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    needs = [line.split(": ", 1)[1] for line in wheel.read(name).decode().splitlines() if line.startswith("Requires-Dist")]
    base = {n.split(">")[0] for n in needs if "extra ==" not in n}
    assert base == {"numpy", "torch", "platformdirs", "filelock"}
    compiler = {n.split(">")[0] for n in needs if "extra == 'compiler'" in n}
    assert {"lark", "llvmlite", "networkx"} <= compiler


def test_every_requirement_of_the_development_set_is_pinned():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        name, exact, version = line.partition("==")
        assert exact, f"not an exact pin: {line}"
        assert "+" not in version, f"a local version: {line}"
        pins[name.lower().replace("_", "-")] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["compiler"], *extras["examples"], *extras["dev"]]
    assert [w for w in wanted if w.split(">")[0] not in pins] == []


def loads(code: str) -> set[str]:
    """Root names of the modules a fresh interpreter has loaded after ``code``."""
    code += "\nimport sys; print(*sorted({n.split('.')[0] for n in sys.modules}))"
    path = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'runtime')!r}]\n"
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_runtime_loads_nothing_of_the_compiler():
    runtime = sorted(p.relative_to(ROOT / "runtime").with_suffix("").as_posix() for p in sources("runtime/gnnc_runtime"))
    names = [n.replace("/", ".").removesuffix(".__init__") for n in runtime]
    # torch itself loads networkx in some builds: what torch alone loads is not held against the runtime.
    extra = loads("\n".join(f"import {n}" for n in names)) - loads("import torch")
    assert "gnnc_runtime" in extra
    assert extra & COMPILER_ONLY == set()


def test_the_compiler_does_load_its_own():
    assert "llvmlite" in loads("import gnnc.codegen.cpu.jit") - loads("import torch")


def test_the_public_face_is_light():
    assert loads("import gnnc") & {"torch", "lark", "llvmlite", "networkx"} == set()


def test_without_the_compiler_extra_the_import_says_the_mend():
    hide = "import sys\nfor name in ('lark', 'networkx'): sys.modules[name] = None\n"
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n" + hide + "import gnnc"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: gnnc needs lark, networkx: install the compiler with  pip install 'gnnc[compiler]'"
    )
