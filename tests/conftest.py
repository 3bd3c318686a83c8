"""Settings every test shares: a cache of its own, deterministic random programs, two threads."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random", deadline=None, print_blob=True)  # other programs every time: for long runs by hand
settings.load_profile(os.environ.get("GNNC_HYPOTHESIS", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    # Kernels of the test run stay out of the user's cache; workers of one run share theirs.
    if "GNNC_CACHE_DIR" not in os.environ:
        os.environ["GNNC_CACHE_DIR"] = tempfile.mkdtemp(prefix="gnnc-tests-")
        config.add_cleanup(partial(shutil.rmtree, os.environ["GNNC_CACHE_DIR"], ignore_errors=True))
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def data_dir() -> Path | None:
    """Where real graphs are: ``GNNC_DATA``, or ``../shared/data`` beside the project; None where there are none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    for folder in (os.environ.get("GNNC_DATA"), beside):
        if folder and (Path(folder) / "cora.npz").is_file():
            return Path(folder)
    return None
