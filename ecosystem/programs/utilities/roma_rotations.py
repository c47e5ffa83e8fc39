"""Converts rotations between forms, aligns point sets and trains through a rotation."""

import roma
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
quaternions = roma.random_unitquat((50,), dtype=torch.float64, device=device)
matrices = roma.unitquat_to_rotmat(quaternions)
assert roma.is_rotation_matrix(matrices, 1e-9)
assert torch.allclose(roma.rotvec_to_rotmat(roma.rotmat_to_rotvec(matrices)), matrices)
assert torch.allclose(roma.euler_to_rotmat("xyz", roma.rotmat_to_euler("xyz", matrices)), matrices)
composed = roma.quat_product(quaternions[:25], quaternions[25:])
assert torch.allclose(roma.unitquat_to_rotmat(composed), matrices[:25] @ matrices[25:])
ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=device)
middle = roma.unitquat_slerp(quaternions[:25], quaternions[25:], ends)
assert torch.allclose(roma.unitquat_to_rotmat(middle[1]), matrices[25:])

points = torch.randn(30, 3, dtype=torch.float64, device=device)
moved = points @ matrices[0].mT + torch.tensor([1.0, 2, 3], dtype=torch.float64, device=device)
rotation, shift = roma.rigid_points_registration(points, moved)
assert torch.allclose(rotation, matrices[0]) and torch.allclose(shift[2].cpu(), torch.tensor(3.0).double())

raw = torch.eye(3, dtype=torch.float64, device=device) + 0.1 * torch.randn(
    3, 3, dtype=torch.float64, device=device
)
raw.requires_grad_()
optimizer = torch.optim.Adam([raw], lr=0.05)
for _step in range(150):
    rotation = roma.special_procrustes(raw)
    loss = (points @ rotation.mT - points @ matrices[1].mT).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
angle = roma.rotmat_geodesic_distance(rotation, matrices[1]).item()
assert angle < 0.05, angle
print(f"roma: angle {angle:.2e}")
