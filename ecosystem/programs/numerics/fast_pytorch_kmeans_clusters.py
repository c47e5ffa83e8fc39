"""Finds clusters with fast-pytorch-kmeans in both of its metrics."""

import torch
from fast_pytorch_kmeans import KMeans

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
centers = torch.tensor([[4.0, 0.0], [0.0, 4.0], [-4.0, -4.0]], device=device)
labels = torch.arange(300, device=device) % 3
points = centers[labels] + 0.4 * torch.randn(300, 2, device=device)
for mode in ("euclidean", "cosine"):
    for minibatch in (None, 200):
        model = KMeans(n_clusters=3, mode=mode, minibatch=minibatch, init_method="kmeans++")
        model.fit_predict(points)
        found = model.predict(points)
        pairs = torch.stack([labels, found]).unique(dim=1)
        assert minibatch or pairs.shape[1] == 3, (mode, pairs)
        if mode == "euclidean" and not minibatch:
            distances = torch.cdist(centers, model.centroids).min(1).values
            assert (distances < 0.5).all(), distances
print(f"fast-pytorch-kmeans: centroids {model.centroids.tolist()}")
