"""Trains a graph convolutional network on two communities, and checks a message passing layer by hand."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, MessagePassing, SAGEConv, global_mean_pool
from torch_geometric.utils import degree, to_dense_adj

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

labels = torch.arange(40) % 2
probability = torch.where(labels[:, None] == labels[None, :], 0.3, 0.03)
adjacency = (torch.rand(40, 40) < probability).triu(1)
edges = (adjacency | adjacency.T).nonzero().T
data = Data(x=torch.eye(40), edge_index=edges, y=labels).to(device)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (
            GCNConv(40, 16),
            SAGEConv(16, 16),
            GATConv(16, 2, heads=2, concat=False),
        )

    def forward(self, data):
        x = F.relu(self.first(data.x, data.edge_index))
        return self.third(F.relu(self.second(x, data.edge_index)), data.edge_index)


class Sum(MessagePassing):
    def forward(self, x, edge_index, weight):
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j, weight):
        return x_j * weight[:, None]


model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
train = torch.arange(40, device=device) < 20
for _epoch in range(60):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data)[train], data.y[train])
    loss.backward()
    optimizer.step()
accuracy = (model(data).argmax(1) == data.y)[~train].float().mean().item()
assert accuracy > 0.8, accuracy

x, weight = torch.randn(40, 3, device=device), torch.rand(data.num_edges, device=device)
dense = to_dense_adj(data.edge_index, edge_attr=weight)[0]
assert torch.allclose(Sum(aggr="add")(x, data.edge_index, weight), dense.T @ x, atol=1e-2)
assert torch.equal(degree(data.edge_index[1], 40).cpu(), (adjacency | adjacency.T).sum(0).float())
graphs = [Data(x=torch.full((n, 2), float(n)), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 4, 5)]
means = [global_mean_pool(b.x, b.batch) for b in DataLoader(graphs, batch_size=2)]
assert torch.cat(means)[:, 0].tolist() == [2, 3, 4, 5] and Batch.from_data_list(graphs).num_nodes == 14
print(f"torch_geometric: loss {loss.item():.4f}, accuracy {accuracy:.2f}")
