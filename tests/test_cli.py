"""`gnnc opt`: passes on text, exit codes, whole error texts."""

from __future__ import annotations

from typer.testing import CliRunner

from gnnc.cli import app
from tests.passes.programs import GATV2, SPMM


def run(*args, text=None):
    return CliRunner().invoke(app, ["opt", *args], input=text)


def test_passes_in_order(tmp_path):
    file = tmp_path / "a.gir"
    file.write_text(GATV2)
    out = run("--passes=simplify,lower_softmax", str(file))
    assert out.exit_code == 0
    assert "softmax" not in out.stdout
    assert "stage lowered" in out.stdout


def test_without_passes_the_text_is_made_canonical():
    out = run("-", text=SPMM)
    assert out.exit_code == 0
    again = run("-", text=out.stdout)
    assert again.stdout == out.stdout


def test_fuse_prints_a_plan():
    out = run("--passes=lower_softmax,fuse", "-", text=GATV2)
    assert out.exit_code == 0
    assert "softmax_sum" in out.stdout
    assert "attention" in out.stdout


def test_kernels_of_a_plan():
    llvm = run("--passes=lower_softmax,fuse", "--emit=llvm", "-", text=GATV2)
    assert llvm.exit_code == 0
    assert "define void @gatv2_0_run(" in llvm.stdout
    cuda = run("--passes=lower_softmax,fuse", "--emit=cuda", "-", text=GATV2.replace("f64", "f32"))
    assert cuda.exit_code == 0
    assert "struct Program" in cuda.stdout
    assert "gatv2_0(" in cuda.stdout


def test_kernels_need_a_plan():
    out = run("--passes=simplify", "--emit=llvm", "-", text=SPMM)
    assert out.exit_code == 1
    assert out.stderr == "gnnc opt: --emit needs fuse as the last pass\n"
    assert run("--passes=fuse", "--emit=ptx", "-", text=SPMM).exit_code == 2


def test_an_unknown_pass():
    out = run("--passes=simplfy", "-", text=SPMM)
    assert out.exit_code == 1
    assert out.stdout == ""
    assert "simplfy" in out.stderr
    assert "simplify" in out.stderr


def test_text_that_does_not_parse():
    out = run("-", text="func @f(")
    assert out.exit_code == 1
    assert out.stderr.startswith("gnnc opt: ")


def test_a_file_that_is_not_there(tmp_path):
    out = run(str(tmp_path / "none.gir"))
    assert out.exit_code == 1
    assert "No such file" in out.stderr


def test_a_list_of_passes():
    out = CliRunner().invoke(app, ["passes"])
    assert out.stdout.split() == ["simplify", "differentiate", "lower_softmax", "fuse"]
