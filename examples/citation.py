"""Node-classification data for the examples: Cora where it can be found, scikit-learn's digits otherwise.

Looked for in this order: ``$GNNC_DATA/cora.npz``, ``../shared/data/cora.npz`` beside the project, PyG's Planetoid if torch_geometric is
installed (it downloads), and last the handwritten digits that scikit-learn ships, as a 5-nearest-neighbour graph.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """``x`` float32 [N, F], ``y`` int64 [N], ``edge_index`` int64 [2, E] (both directions, no self-loops), masks bool [N]."""

    name: str
    x: Tensor
    y: Tensor
    edge_index: Tensor
    train: Tensor
    test: Tensor

    def to(self, device: str) -> Dataset:
        """The same data on another device."""
        return replace(self, **{k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)})

    @property
    def num_classes(self) -> int:
        return int(self.y.max()) + 1


def _mask(n: int, index: np.ndarray) -> Tensor:
    out = torch.zeros(n, dtype=torch.bool)
    out[torch.as_tensor(index, dtype=torch.long)] = True
    return out


def _cora_file() -> Path | None:
    root = Path(__file__).resolve().parents[1]
    for folder in (os.environ.get("GNNC_DATA"), root.parent / "shared" / "data"):
        if folder and (Path(folder) / "cora.npz").is_file():
            return Path(folder) / "cora.npz"
    return None


def _cora(path: Path) -> Dataset:
    with np.load(path, allow_pickle=False) as z:
        n, f = (int(s) for s in z["feat_shape"])
        x = np.zeros((n, f), np.float32)
        x[np.repeat(np.arange(n), np.diff(z["feat_indptr"])), z["feat_indices"]] = 1
        x /= np.maximum(x.sum(1, keepdims=True), 1)
        edges = torch.as_tensor(z["edge_index"].astype(np.int64))
        y = torch.as_tensor(z["y"].astype(np.int64))
        return Dataset("Cora (public split)", torch.from_numpy(x), y, edges, _mask(n, z["train_idx"]), _mask(n, z["test_idx"]))


def _planetoid() -> Dataset | None:
    try:
        from torch_geometric.datasets import Planetoid  # type: ignore[import-not-found,unused-ignore]

        d = Planetoid(str(Path.home() / ".cache" / "gnnc-examples"), "Cora")[0]
    except Exception as e:
        print(f"(no Planetoid data: {type(e).__name__})")
        return None
    x = d.x / d.x.sum(1, keepdim=True).clamp(min=1)
    return Dataset("Cora (Planetoid)", x, d.y, d.edge_index, d.train_mask, d.test_mask)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    digits = load_digits()
    x = torch.as_tensor(digits.data / 16.0, dtype=torch.float32)
    near = kneighbors_graph(digits.data, 5).tocoo()
    pairs = torch.as_tensor(np.stack([near.row, near.col]), dtype=torch.long)
    both = torch.unique(torch.cat([pairs, pairs.flip(0)], 1), dim=1)
    gen = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=gen).numpy()
    return Dataset(
        "digits (5-nearest-neighbour graph)",
        x,
        torch.as_tensor(digits.target),
        both,
        _mask(len(x), order[:200]),
        _mask(len(x), order[200:]),
    )


def load() -> Dataset:
    """The first data set of the list above that can be had."""
    path = _cora_file()
    if path is not None:
        return _cora(path)
    return _planetoid() or _digits()
