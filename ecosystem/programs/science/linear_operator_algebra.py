"""Solves, factors and samples with structured linear operators and compares with dense algebra."""

import torch
from linear_operator import solve, to_linear_operator
from linear_operator.operators import (
    BlockDiagLinearOperator,
    DenseLinearOperator,
    DiagLinearOperator,
    KroneckerProductLinearOperator,
    LowRankRootLinearOperator,
    ToeplitzLinearOperator,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
kind = {"device": device, "dtype": torch.float64}


def positive(n):
    a = torch.randn(n, n, **kind)
    return a @ a.T + n * torch.eye(n, **kind)


diagonal, root = torch.rand(12, **kind) + 1, torch.randn(12, 2, **kind)
operators = {
    "dense": DenseLinearOperator(positive(12)),
    "low rank plus diagonal": LowRankRootLinearOperator(root) + DiagLinearOperator(diagonal),
    "kronecker": KroneckerProductLinearOperator(
        to_linear_operator(positive(3)), to_linear_operator(positive(4))
    ),
    "toeplitz": ToeplitzLinearOperator(torch.tensor([4.0, 1.0, 0.5] + [0.0] * 9, **kind)),
    "blocks": BlockDiagLinearOperator(DenseLinearOperator(torch.stack([positive(6), positive(6)]))),
}
right = torch.randn(12, 3, **kind)
worst = 0.0
for name, operator in operators.items():
    dense = operator.to_dense()
    pairs = [
        (operator @ right, dense @ right),
        (solve(operator, right), torch.linalg.solve(dense, right)),
        (operator.logdet(), torch.logdet(dense)),
        (operator.diagonal(), dense.diagonal()),
        (operator.inv_quad(right[:, 0]), right[:, 0] @ torch.linalg.solve(dense, right[:, 0])),
        ((operator.mT * 2.0)[2:5].to_dense(), 2 * dense.T[2:5]),
    ]
    for got, expected in pairs:
        worst = max(worst, (got - expected).abs().max().item())
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4), name

diagonal.requires_grad_()
operator = LowRankRootLinearOperator(root) + DiagLinearOperator(diagonal)
quadratic, logdet = operator.inv_quad_logdet(right[:, :1], logdet=True)
(quadratic + logdet).backward()
dense = diagonal.detach().clone().requires_grad_()
matrix = root @ root.T + dense.diag()
(right[:, 0] @ torch.linalg.solve(matrix, right[:, 0]) + torch.logdet(matrix)).backward()
assert torch.allclose(diagonal.grad, dense.grad, rtol=1e-4, atol=1e-4)
print(f"linear_operator: {len(operators)} operators, largest difference below 1e-4: {worst < 1e-4}")
