"""Calls that random hunts found to differ from PyTorch's: now value, dtype and type of error are PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="oracle PyTorch is not installed")
from support import same, torch

import flambeau

CALLS = """
t.histc(t.tensor([1e30, 1e30]))
t.histc(t.tensor([1e30], dtype=t.float64), 5)
F.pairwise_distance(t.full((2, 3), 3, dtype=t.uint8), t.ones(2, 3, dtype=t.uint8), p=-1.0, eps=False)
F.pairwise_distance(t.full((2, 3), 3), t.ones(2, 3, dtype=t.int64), p=1, eps=2)
F.max_unpool1d(t.ones(1, 1, 2), t.tensor([[[0, 2]]]), 2, stride=[1, 2])
F.max_unpool1d(t.ones(1, 1, 2), t.tensor([[[0, 2]]]), 2, padding=[0, 2])
F.max_unpool2d(t.ones(2, 3, 3), t.ones(2, 3, 3, dtype=t.int64), 0)
F.cross_entropy(t.ones(2, 3), t.ones(2, 3), label_smoothing=-1.0)
F.cross_entropy(t.ones(2, 3), t.tensor([0, 1]), label_smoothing=-1.0)
F.cross_entropy(t.ones(2, 3), t.tensor([0, 1]), label_smoothing=float("nan"))
F.cross_entropy(t.ones(2, 3), t.tensor([0, 1]), label_smoothing=1.5)
t.allclose(t.ones(2), t.ones(2), atol=float("nan"))
t.isclose(t.ones(2), t.ones(2), rtol=float("nan"))
t.addr(t.ones(2, 2, dtype=t.bfloat16), t.ones(2), t.ones(2))
t.logdet(t.ones(2, 2))
t.logdet(t.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 1.0, 1.0]]))
t.logdet(t.tensor([[0.0, 1.0], [1.0, 0.0]]))
t.ones(2).uniform_(to=1e300)
t.ones(2).uniform_(-1e300, 0)
t.ones(2, dtype=t.float16).uniform_(0, 1e5)
t.ones(2).uniform_(-3e38, 3e38)
t.ones(2).uniform_(0, float("nan"))
F.embedding_bag(t.ones(2, 3, dtype=t.int64), t.ones(2, 3, dtype=t.int64), norm_type=-2)
t.tensordot(t.ones(4), t.ones(4), dims=range(2))
F.lp_pool1d(t.tensor([[1.0, -2.0, 3.0, 4.0]]), float("inf"), 2)
F.lp_pool1d(t.tensor([[1.0, -2.0, 3.0, 4.0]]), -float("inf"), 2)
F.lp_pool2d(t.tensor([[[1.0, -2.0], [3.0, 4.0]]]), float("inf"), 2)
t.svd(t.ones(3), compute_uv=False)
t.einsum(t.ones(2, 2))
t.index_fill(t.ones(2, 2), 0, t.ones(2, 2, dtype=t.int64), 1)
t.index_fill(t.ones(2, 2), 0, t.ones(2, dtype=t.uint8), 1)
t.broadcast_shapes(1.5, (2,))
t.baddbmm(t.ones(3), t.ones(3), t.ones(3))
t.addbmm(t.ones(3), t.ones(3), t.ones(3))
t.mm(t.ones(2, 2), t.ones(2), t.float32)
t.bmm(t.ones(2, 2), t.ones(2), t.float32)
F.rms_norm(t.ones(2), (3, 2, 2))
t.bitwise_and(t.ones(2), t.ones(3))
t.gcd(t.ones(2), t.ones(3))
t.repeat_interleave(t.ones(2, 2))
F.interpolate(t.ones(2, 2), mode="constant")
F.interpolate(t.ones(2, 2), 2)
t.argmax(t.ones(3, 3), t.tensor([0]))
t.cumsum(t.ones(3, 3), t.tensor([0]))
t.softmax(t.ones(3, 3), t.tensor(0))
t.ones(3, 3).narrow_copy(t.tensor([0]), 0, 1)
t.linalg.cholesky_ex(t.full((3, 3), float("nan"))).info
t.linalg.cholesky_ex(t.diag(t.tensor([1.0, float("nan"), 1.0]))).info
t.linalg.cholesky(t.full((3, 3), float("nan")))
t.floor_divide(7, 2)
F.hardtanh_(t.arange(4.0), 2.5)
F.hardtanh_(t.arange(4.0), 0.5, 1.5)
F.hardtanh_(t.ones(2), 0, t.ones(2))
F.hardtanh_(t.ones(2), np.ones(2))
F.hinge_embedding_loss(t.ones(2), t.ones(2), True)
F.hinge_embedding_loss(t.arange(4), t.tensor([1, -1, 1, -1]), 2)
F.binary_cross_entropy_with_logits(t.ones(2), t.ones(2), 1)
F.binary_cross_entropy_with_logits(t.ones(2), t.ones(2), pos_weight=1)
F.elu(t.ones(2), t.ones(2))
F.leaky_relu(t.ones(2), t.ones(2))
F.celu(t.ones(2), np.ones(2))
F.softshrink(t.ones(2), np.ones(2))
F.glu(t.ones(2, 2), True)
F.embedding(t.tensor([0]), t.ones(2, 2), True)
F.nll_loss(t.ones(1, 2), t.tensor([0]), None, None, True)
F.max_pool2d(t.ones(1, 4, 4), [1.0])
F.max_pool2d(t.ones(1, 4, 4), (2, 1.5))
F.max_pool2d(t.ones(1, 4, 4), (2, True))
F.max_pool1d(t.ones(1, 4), 1, b"x")
F.avg_pool2d(t.ones(1, 4, 4), (2, 1.5))
F.adaptive_avg_pool2d(t.ones(1, 4, 4), (2, 1.5))
F.adaptive_max_pool2d(t.ones(1, 4, 4), (2, 1.5))
F.adaptive_max_pool2d(t.ones(1, 4, 4), range(2))
F.fractional_max_pool2d(t.ones(1, 4, 4), 2, 1.5)
F.fractional_max_pool2d(t.ones(1, 4, 4), 2, "x")
F.max_unpool2d(t.ones(1, 1, 1), t.zeros(1, 1, 1, dtype=t.int64), 2, output_size=(2, 2.0))
F.conv2d(t.ones(1, 4, 4), t.ones(1, 1, 2, 2), None, (1, True))
F.conv2d(t.ones(1, 4, 4), t.ones(1, 1, 2, 2), None, (1, 1.5))
F.unfold(t.ones(1, 4, 4), (2, True))
F.interpolate(t.ones(1, 1, 4), 1.5)
F.interpolate(t.ones(1, 1, 4), "x")
F.pad(t.ones(2, 2), (1, 1.5))
F.pad(t.ones(2, 2), (True, True))
F.pad(t.ones(2, 2), [1.0])
F.pad(t.ones(2, 2), (1, 1), t.ones(2))
F.local_response_norm(t.ones(1, 2, 2), 1.5)
F.avg_pool1d(t.ones(2, 3), 1000, ceil_mode=True)
F.max_pool1d(t.arange(6.0).reshape(2, 3), 1000, ceil_mode=True)
F.max_pool2d(t.arange(9.0).reshape(1, 3, 3), 2, 1, 1, 1, True)
F.lp_pool1d(t.ones(2, 3), 1, (1 << 63) - 1, ceil_mode=True)
F.ctc_loss(t.zeros(3, 1, 2), t.zeros(1, 1, dtype=t.int64), t.tensor([9]), t.tensor([1]))
F.ctc_loss(t.zeros(3, 1, 2), t.zeros(1, 1, dtype=t.int64), (3,), (-1,))
F.ctc_loss(t.zeros(3, 1, 2), t.zeros(1, 1, dtype=t.int64), (3,), (2,))
F.ctc_loss(t.zeros(3, 1, 2), t.ones(2, dtype=t.int64), (3,), (1,))
t.ones(2, 3).tril(-(1 << 63))
t.ones(2, 3).triu((1 << 63) - 1)
t.ones(3).scatter_(0, t.tensor([0]), src=1, value=1.0)
t.ones(3).scatter_(0, t.tensor([0]), value=1.0)
t.round(t.ones(2), decimals=400)
t.round(t.ones(2), decimals=-400)
t.round(t.ones(2, dtype=t.float64), decimals=(1 << 31) - 1)
t.round(t.full((2,), 1.26), decimals=1)
t.norm(t.ones(2), b"x")
t.norm(t.ones(2), 1j)
t.norm(t.ones(2), np.ones(2))
t.pdist(t.ones(2, 2), np.ones(2))
t.quantile(t.ones(2), np.ones(2))
t.bernoulli(t.ones(2), np.ones(2))
t.pinverse(t.ones(2, 2), np.ones(2))
t.autograd.grad(F.celu(x := t.arange(-2.0, 2.0).requires_grad_(), np.float32(0.5)).sum(), x)[0]
t.ones(2, 3).scatter_(1, t.zeros(2, 3, dtype=t.int64), np.float32(2.5))
t.aminmax(t.ones(2, 3), dim=np.int64(1)).min
[x := t.ones(2, 3), x.__setitem__((0, 1), np.int64(4))][0]
F.conv_transpose2d(t.ones(1, 2, 3, 3), t.ones(2, 1, 2, 2), groups=t.tensor(2))
t.lerp(t.zeros(3), t.ones(3), t.tensor(0.5, dtype=t.float64))
t.ones(4).tensor_split(t.tensor([1.0, 2.0]))
t.ones(2, 3).to_sparse(sparse_dim=1.5)
t.ones(2).type(3)
t.nn.HuberLoss(delta="x")
F.cosine_similarity(t.ones(2, 3), t.ones(2, 3), eps=float("nan"))
F.max_unpool3d(t.ones(1, 1, 2, 2, 2), t.zeros(1, 1, 2, 2, 2, dtype=t.int64), 2, stride=0)
t.autograd.grad(t.tensor([-2.0, 4.0]).pow(p := t.tensor([1.0 + 0j, 2j], requires_grad=True)).real.sum(), p)[0].angle().isnan()
t.autograd.grad(t.ones(3).quantile(q := t.ones(0, requires_grad=True)).sum(), q)[0]
F.binary_cross_entropy(t.full((3,), 0.5), t.tensor([2.0, 0.5, -1.0]))
F.binary_cross_entropy(t.full((3,), 0.5), t.tensor([0.0, float("nan"), 1.0]), reduction="none")
F.conv2d(t.ones(1, 2, 5, 5), t.ones(3, 2, 2, 2), stride=1 << 40)
F.conv1d(t.ones(1, 2, 5), t.ones(3, 2, 2), stride=(1 << 62,))
F.unfold(t.ones(1, 2, 4, 4), 2, 1, 0, (1 << 63) - 1)
F.conv2d(t.ones(2, 5), t.ones(3, 2), padding="same")
F.conv2d(t.ones(1, 2, 5, 5), t.ones(3, 2, 2, 2, 2))
F.fractional_max_pool3d(t.ones(1, 2, 4, 4, 4), 2, output_ratio=1e300)
F.fractional_max_pool3d(t.ones(1, 2, 4, 4, 4), 2, output_ratio=0.75)
F.fractional_max_pool3d(t.ones(1, 2, 4, 4, 4), 1, output_size=3, _random_samples=t.zeros(1, 2, 3))
F.fractional_max_pool2d(t.ones(1, 2, 4, 4), 2, output_ratio=(0.5,))
F.fractional_max_pool2d(t.ones(1, 2, 4, 4), 2, output_size=2, _random_samples=t.zeros(1, 2, 2, dtype=t.float64))
F.fractional_max_pool2d(t.ones(1, 2, 4, 4), 2, output_size=2, _random_samples=t.zeros(1, 1, 2))
F.fractional_max_pool2d(t.ones(1, 2, 4, 4), 2, output_size=2, _random_samples=t.zeros(1, 2, 1))
F.multi_head_attention_forward(*[t.ones(3, 2, 4)] * 3, 4, 2, t.ones(12, 4), None, None, None, False, 0.0, t.ones(4, 4), None, is_causal=0, need_weights=False)
t.ones(2, 3).scatter_reduce_(1, t.ones(0), t.ones(2, 3), "amax")
t.broadcast_shapes(None, (2, 1), [True, 3])
t.broadcast_shapes((2, 3), (-1, 3))
t.broadcast_shapes(-1, 3)
t.broadcast_shapes("x")
t.autograd.grad((x := t.tensor([1.0, 2.5], dtype=t.bfloat16, requires_grad=True)).digamma().sum(), x)[0]
t.tensor([None], dtype=t.float32)
t.tensor(object, dtype=t.int64)
t.ones(2).new_tensor([object])
t.triplet_margin_loss(t.ones(2), t.zeros(2), t.ones(2), -1.0)
t.margin_ranking_loss(t.ones(2, 2), t.zeros(2, 1), t.ones(2))
F.huber_loss(t.ones(2), t.zeros(2, dtype=t.float64))
F.huber_loss(t.ones(2, dtype=t.float16), t.zeros(2), reduction="none")
F.huber_loss(t.ones(2, dtype=t.int64), t.zeros(2))
F.huber_loss(t.ones(2), t.zeros(2, dtype=t.float64), weight=t.full((2,), 3.0, dtype=t.float64))
t.cholesky_solve(t.ones(2, 2, dtype=t.float64), t.eye(2))
t.ones(2).float(memory_format=None)
t.ones(2).contiguous(memory_format=None)
t.view_copy(t.ones(2, 3), 6)
t.view_copy(t.ones(2, 3), t.int32)
t.view_copy(t.ones(2, 3), (3, 2))
t.ones(2, 3).expand(4, 2, 3).fill_(t.tensor(1.0))
t.ones(2, 3).expand(4, 2, 3).fill_(1.0)
t.nn.LayerNorm(t.tensor(3))
t.nn.LayerNorm((True, 2)).normalized_shape
t.unsafe_split(t.ones(3), t.tensor(0.5), 0)
F.embedding(t.tensor([0, 1]), t.ones(4, 3), None, 1 << 70)
t.autograd.grad((x := t.tensor([-3.0, -0.5, 0.5, 1.0, 2.0], requires_grad=True)).acosh().sum(), x)[0]
t.autograd.grad((x := t.tensor([-3.0, 2.0], requires_grad=True)).float_power(t.tensor([True])).sum(), x)[0]
t.ones(2, 3)[slice(t.tensor(0), t.tensor(1))]
F.fold(1.0, [1, 3, 2], (2, 1), 1, (1,))
F.adaptive_max_pool1d_with_indices(1, 2)
F.cosine_embedding_loss(1.0, t.ones(2, 3), t.ones(2, 3, 3))
F.fractional_max_pool2d(t.ones(1, 2, 4, 4), 2, output_size=2, _random_samples=np.float32(1))
t.autograd.grad(t.embedding(w := t.ones(4, 3, requires_grad=True), t.tensor([0, 1, 0]), np.int64(1)).sum(), w)[0]
t.autograd.grad(t.embedding(w := t.ones(4, 3, requires_grad=True), t.tensor([0, 1, 0]), -1, True).sum(), w)[0]
""".strip().splitlines()


def outcome(call: str, package: Any) -> Any:
    try:
        return eval(call, {"t": package, "F": package.nn.functional, "np": np})
    except Exception as error:
        return error


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_differed_are_as_pytorchs(call: str) -> None:
    theirs, ours = outcome(call, torch), outcome(call, flambeau)
    if isinstance(theirs, Exception) or not isinstance(theirs, torch.Tensor):
        assert type(ours).__name__.lstrip("_") == type(theirs).__name__.lstrip("_"), (ours, theirs)
    else:
        same(ours, theirs, strides=False)


MESSAGES = """
F.embedding(t.tensor([True, False]), t.ones(4, 3))
F.embedding(t.tensor([0.0]), t.ones(4, 3))
F.embedding(t.tensor([0.0]), t.ones(4, 3), max_norm=1.0)
t.ones(2, 3).scatter_(0, t.zeros(4, 4, dtype=t.int64), t.ones(2, 3, dtype=t.int64))
F.conv2d(t.ones(3, 3), t.ones(2, 3, 3))
t.broadcast_shapes((2, 3), (3, 3))
t.broadcast_shapes((0, 2), (3, 1))
""".strip().splitlines()


@pytest.mark.parametrize("call", MESSAGES)
def test_messages_are_as_pytorchs(call: str) -> None:
    theirs, ours = outcome(call, torch), outcome(call, flambeau)
    assert (type(ours).__name__, str(ours)) == (type(theirs).__name__, str(theirs))
