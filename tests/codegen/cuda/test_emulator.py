"""The emulator notices what a GPU would not forgive, and runs what it should."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .emulated import HERE, need_compiler

MAIN = """
#include "emulate.h"
int sums[64];
int main() {
  alignas(16) static const int table[8] = {0};
  emulator.launch(1, 64, 256, [&] { %s });
  printf("%%d %%d", sums[0], sums[63]);
}
"""


def run(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(MAIN % body)
    subprocess.run([need_compiler(), "-std=c++17", "-O1", "-w", f"-I{HERE}", "-o", str(program), str(source)], check=True)
    return subprocess.run([str(program)], capture_output=True, text=True)


def test_shuffles_and_barriers(tmp_path: Path) -> None:
    body = """
      int x = threadIdx.x;
      for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
      emulator.shared[threadIdx.x] = x;
      __syncthreads();
      sums[threadIdx.x] = emulator.shared[63 - threadIdx.x];
    """
    done = run(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, f"{sum(range(32, 64))} {sum(range(32))}")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if (threadIdx.x == 5) __syncwarp();", "deadlock: a barrier that not all threads reach\n"),
        ("if (threadIdx.x < 32) __syncthreads();", "deadlock: a barrier that not all threads reach\n"),
        ("if (threadIdx.x != 3) sums[0] = __shfl_xor_sync(~0u, 1, 1);", "deadlock: a barrier that not all threads reach\n"),
        ("__ldg((const uint4*)(table + 1));", "misaligned load of 16 bytes\n"),
    ],
    ids=["warp", "block", "shuffle", "alignment"],
)
def test_faults_end_the_run(tmp_path: Path, body: str, message: str) -> None:
    done = run(tmp_path, body)
    assert done.returncode != 0
    assert done.stderr == message
