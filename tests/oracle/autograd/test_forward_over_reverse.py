"""Gradients differentiated in forward mode, as Gauss-Newton products need them, equal PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
from support import to_torch, torch

import flambeau

FUNCTIONS = [
    "F.mse_loss(p,y,reduction='sum')", "F.l1_loss(p,y)", "F.smooth_l1_loss(p,y,beta=2.)",
    "F.binary_cross_entropy_with_logits(p,y)", "F.binary_cross_entropy(p.sigmoid(),y+.2,reduction='sum')",
    "F.cross_entropy(p[None],t.tensor([1]))", "F.poisson_nll_loss(p,y)", "F.kl_div(p,y+.3,reduction='sum')",
    "F.softplus(p).sum()", "F.gelu(p).sum()", "F.silu(p).sum()", "F.softmax(p,0).pow(2).sum()", "p.logsumexp(0)",
    "p.norm()", "p.var()**2", "p.prod()", "F.cosine_similarity(p,v,0)", "p.cumsum(0).pow(2).sum()",
    "F.linear(p,t.ones(3,3)).pow(3).sum()", "(p*p).max()", "t.where(p>0,p**3,p).sum()", "(p[[0,0,2]]**3).sum()",
    "t.linalg.pinv(p[None]).pow(3).sum()",
]  # fmt: skip


@pytest.mark.skipif(torch is None, reason="needs PyTorch")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", FUNCTIONS)
def test_products_with_hessians_equal(text: str) -> None:
    def run(library: Any) -> Any:
        v, y = library.tensor([1.0, 2.0, 3.0]), library.zeros(3)

        def function(p: Any) -> Any:
            return eval(text, {"t": library, "F": library.nn.functional, "v": v, "y": y, "p": p})

        gradient, place = library.func.grad(function), 1 + v * 0.1
        alone = library.func.jvp(gradient, (place,), (v,))[1]
        mapped = library.func.vmap(lambda u: library.func.jvp(gradient, (place,), (u,))[1])
        with library.no_grad():
            return library.stack([alone, *mapped(v.diag())])

    torch.testing.assert_close(to_torch(run(flambeau)), run(torch), rtol=1e-3, atol=1e-4)
