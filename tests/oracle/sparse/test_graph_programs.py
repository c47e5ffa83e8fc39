"""Programs of graph networks as people write them, by PyTorch and by `flambeau run`; and names that their libraries use."""

from __future__ import annotations

from pathlib import Path

import both

import flambeau
from flambeau.tensor import printing

GCN = """
import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
rng = np.random.default_rng(0)
edges = rng.integers(0, 30, (2, 90))
matrix = sp.coo_matrix((np.ones(90, np.float32), edges), shape=(30, 30)) + sp.eye(30, dtype=np.float32)
rows = np.asarray(matrix.sum(1)).flatten() ** -0.5
matrix = (sp.diags(rows) @ matrix @ sp.diags(rows)).tocoo().astype(np.float32)
indices = torch.from_numpy(np.vstack((matrix.row, matrix.col)).astype(np.int64))
adj = torch.sparse.FloatTensor(indices, torch.from_numpy(matrix.data), torch.Size(matrix.shape)).to(device)
features = torch.from_numpy(rng.random((30, 8)).astype(np.float32)).to(device)
labels = torch.from_numpy(rng.integers(0, 3, 30)).to(device)


class GraphConvolution(torch.nn.Module):
    def __init__(self, size, out, adjacency):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(rng.random((size, out)).astype(np.float32) - 0.5))
        self.register_buffer("adjacency", adjacency)

    def forward(self, x):
        return torch.spmm(self.adjacency, x @ self.weight)


model = torch.nn.Sequential(GraphConvolution(8, 16, adj), torch.nn.ReLU(), GraphConvolution(16, 3, adj.to_sparse_csr())).to(device)
names = torch.nn.Embedding(30, 8, sparse=True).to(device)
with torch.no_grad():
    names.weight.copy_(features)
optimizers = [torch.optim.Adam(model.parameters(), lr=0.05), torch.optim.SparseAdam(names.parameters(), lr=0.05)]
for epoch in range(12):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = F.cross_entropy(model(names(torch.arange(30, device=device))), labels)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    print(epoch, f"{loss.item():.3f}")
print(sorted(model.state_dict()), names.weight.grad.is_sparse, adj.layout, str(model[2].adjacency.layout))
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt"))
print(f"{F.cross_entropy(model(names.weight), labels).item():.3f}")
"""


def test_graph_network_trains_as_under_pytorch(tmp_path: Path) -> None:
    both.run_both(tmp_path, GCN, 14, "--float32-precision", "highest")


def test_print_options_are_seen_under_pytorchs_name() -> None:
    from flambeau import _tensor_str

    before = _tensor_str.PRINT_OPTS.threshold
    flambeau.set_printoptions(threshold=7)
    try:
        assert _tensor_str.PRINT_OPTS.threshold == 7
    finally:
        flambeau.set_printoptions(threshold=before)
    assert _tensor_str._tensor_str(flambeau.ones(2), 0) == "[1., 1.]"
    assert _tensor_str._str(flambeau.ones(2)) == printing.text_of(flambeau.ones(2))
