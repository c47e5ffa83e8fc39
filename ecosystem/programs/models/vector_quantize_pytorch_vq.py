"""Learns a codebook by moving averages, and quantizes with residual, finite and lookup-free codes."""

import torch
from vector_quantize_pytorch import FSQ, LFQ, ResidualVQ, VectorQuantize

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

centers = torch.randn(8, 16, device=device) * 3
quantizer = VectorQuantize(dim=16, codebook_size=16, decay=0.8, commitment_weight=1.0, kmeans_init=True).to(
    device
)
errors = []
for _step in range(15):
    points = centers[torch.randint(0, 8, (4, 64), device=device)] + 0.05 * torch.randn(
        4, 64, 16, device=device
    )
    quantized, indices, commit = quantizer(points)
    errors.append((quantized - points).square().mean().item())
assert indices.shape == (4, 64) and errors[-1] < 1.0, errors
quantizer.eval()
quantized, indices, _ = quantizer(points)
assert torch.allclose(quantizer.get_output_from_indices(indices), quantized, atol=1e-5)

points.requires_grad_()
quantizer.train()
quantizer(points)[2].sum().backward()
assert points.grad.abs().sum() > 0

residual = ResidualVQ(dim=16, num_quantizers=3, codebook_size=16, kmeans_init=True).to(device)
for _step in range(5):
    _, codes, losses = residual(points.detach())
assert codes.shape == (4, 64, 3) and losses.shape[-1] == 3

fsq = FSQ([8, 5, 5]).to(device)
values, codes = fsq(torch.randn(2, 10, 3, device=device))
assert torch.equal(fsq.indices_to_codes(codes), values)
lfq = LFQ(codebook_size=256, dim=8, entropy_loss_weight=0.1).to(device).eval()
bits, codes, _ = lfq(torch.randn(2, 10, 8, device=device))
assert torch.equal(lfq.indices_to_codes(codes), bits)
print(f"vector-quantize-pytorch: error {errors[0]:.4f} to {errors[-1]:.4f}")
