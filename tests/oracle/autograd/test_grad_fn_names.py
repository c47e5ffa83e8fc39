"""Names of `grad_fn`: PyTorch's, of every differentiable function that one expression can show."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from support import torch

import flambeau

SAME = """
x+y x+1 x-y x*y x*2 x/y x/2 2/x x**2 x**y 2**x -x abs(x) x.abs() x.exp() x.exp2() x.expm1() x.log() x.log2()
x.log10() x.log1p() x.sqrt() x.rsqrt() x.sin() x.cos() x.tan() x.sinh() x.cosh() x.tanh() x.asin() x.acos()
x.atan() x.asinh() (x+1).acosh() x.atanh() x.sigmoid() x.relu() x.erf() x.erfc() x.erfinv() x.lgamma()
x.digamma() x.reciprocal() x.square() x.sign() x.floor() x.ceil() x.round() x.trunc() x.frac() x.neg()
x.clamp(0,.2) x.clamp(min=.1) x.clamp_max(.1) x.atan2(y) x.maximum(y) x.minimum(y) x.fmax(y) x.fmin(y)
torch.hypot(x,y) x.fmod(.3) x.remainder(.3) x.lerp(y,.3) x.lerp(y,y) torch.addcmul(x,x,y) torch.addcdiv(x,x,y)
torch.where(mask,x,y) x.masked_fill(mask,0.) x.masked_select(mask) x[mask] x[i] x.index_select(0,i) x.gather(0,i[:,None]) x.sum()
x.sum(0) x.sum((0,1)) x.mean() x.mean(0) x.prod() x.prod(0) x.var() x.var(0) x.std() x.std(0) x.max() x.min()
x.max(0)[0] x.min(0)[0] x.amax(0) x.amin() x.median() x.median(0)[0] x.norm() x.norm(2,0) x.norm(1)
x.logsumexp(0) x.softmax(0) x.log_softmax(0) x.cumsum(0) x.cumprod(0) x.cummax(0)[0] x.logcumsumexp(0)
x.sort(0)[0] x.topk(2)[0] x.kthvalue(2)[0] x.mode(0)[0] x.argsort(0) x.t() x.T x.mT x.transpose(0,1)
x.permute(1,0) x.view(-1) x.reshape(-1) x.t().reshape(-1) x.unsqueeze(0) x.unsqueeze(0).squeeze(0) x.squeeze()
x.squeeze((0,1)) x.expand(2,3,4) x[0] x[1:] x[None] x[...,0] x.select(0,0) x.narrow(0,0,1) x.diagonal()
x.unfold(0,2,1) x.as_strided((2,),(1,)) x.split(1)[0] x.split([1,2])[0] x.chunk(2)[0] x.unbind()[0] x.clone()
x.contiguous() x.t().contiguous() x.double() x.to(torch.float64) x.half() torch.cat([x,y]) torch.hstack([x,y])
x.flip(0) x.roll(1,0) x.tril() x.triu() x.trace() torch.flatten(x) x@m x@v v@v torch.mm(x,m) torch.mv(x,v)
torch.dot(v,v) torch.outer(v,v) torch.bmm(b,b.transpose(1,2)) torch.matmul(b,m) torch.addmm(q,x,m)
torch.tensordot(x,m,1) torch.inner(v,v) torch.linalg.inv(q) torch.inverse(q) torch.det(q) torch.linalg.det(q)
torch.slogdet(q)[1] torch.linalg.solve(q,x) torch.linalg.cholesky(q) torch.linalg.qr(q)[0]
torch.linalg.svd(q)[1] torch.linalg.eigh(q)[0] torch.linalg.norm(x) torch.linalg.vector_norm(x)
torch.linalg.matrix_norm(x) torch.linalg.pinv(x) torch.cross(q,q,dim=0) torch.cdist(x,y) F.relu(x) F.gelu(x)
F.silu(x) F.elu(x) F.selu(x) F.leaky_relu(x) F.softplus(x) F.hardswish(x) F.hardsigmoid(x) F.mish(x)
F.logsigmoid(x) F.tanhshrink(x) F.softshrink(x) F.hardshrink(x) F.threshold(x,.1,0.) F.softsign(x)
F.softmin(x,0) F.glu(x) F.prelu(x,torch.tensor([.2])) F.linear(x,m.t()) F.linear(x,m.t(),torch.ones(3))
F.linear(b,m.t()) F.linear(b,m.t(),torch.ones(3)) F.conv2d(im,w) F.conv_transpose2d(im,w.transpose(0,1))
F.max_pool2d(im,2) F.avg_pool2d(im,2) F.adaptive_avg_pool2d(im,2) F.adaptive_avg_pool2d(im,1)
F.adaptive_max_pool2d(im,2) F.layer_norm(x,(4,)) F.group_norm(im,3) F.batch_norm(im,None,None,training=True)
F.instance_norm(im) F.embedding(i,x) F.dropout(x,.5) F.interpolate(im,scale_factor=2)
F.interpolate(im,scale_factor=2,mode='bilinear') F.unfold(im,2) F.l1_loss(x,y) F.cross_entropy(q,lab)
F.cross_entropy(im,pix) F.nll_loss(q,lab) F.kl_div(x,y) F.poisson_nll_loss(x,y) F.gaussian_nll_loss(x,y,torch.ones(3,4))
F.hinge_embedding_loss(x,torch.ones(3,4)) F.margin_ranking_loss(x,y,torch.ones(3,4)) F.cosine_similarity(x,y)
F.normalize(x) c.abs() c.angle() torch.view_as_real(c) torch.complex(x,y) torch.polar(x,y) c*c c.sum()
torch.fft.fft(c) torch.fft.ifft(c) torch.fft.rfft(x) torch.fft.irfft(c) torch.fft.fft2(c)
x.scatter(0,i[:,None],y[:2]) x.scatter_add(0,i[:,None],y[:2])
x.scatter_reduce(0,i[:,None],y[:2],'amax') x.index_add(0,i,y[:2]) x.index_copy(0,i,y[:2]) x.index_fill(0,i,0.)
x.index_put((i,),y[:2]) x.put(i,v[:2]) x.take(i) torch.take_along_dim(x,i[:,None],0) x.masked_scatter(mask,y)
x.cumsum(0).add_(1) x.clone().mul_(2) x.clone().fill_(2.) x.clone().copy_(y) x.clone().relu_() x.clone().exp_()
x.clone().clamp_(0,1) x.nan_to_num() x.diff() torch.logaddexp(x,y) torch.sinc(x) torch.logit(x) torch.i0(x)
torch.xlogy(x,y) torch.special.xlog1py(x,y) torch.copysign(x,y) torch.deg2rad(x) torch.rad2deg(x)
torch.polygamma(1,x) torch.cov(x) torch.corrcoef(x) torch.meshgrid(v,v,indexing='ij')[0]
torch.broadcast_to(x,(2,3,4)) x.ravel() x.unflatten(0,(3,1)) x.movedim(0,1) x.swapaxes(0,1) torch.nansum(x)
torch.nanmedian(x) torch.count_nonzero(x) torch.aminmax(x)[0] torch.std_mean(x)[0] torch.var_mean(x)[0]
x.float() x.type_as(y) x.to(x.dtype) x.view_as(y) x.reshape_as(y) x.expand_as(b[0]) x.repeat_interleave(2,0)
x.softmax(0,dtype=torch.float64) x.sum(dtype=torch.float64) x.pow(2.) x.pow(.5) x.pow(0) x.pow(y) torch.pow(2,x)
x.true_divide(y) x.sub(y,alpha=2) x.add(y,alpha=2) x.detach() x.data torch.linalg.matrix_power(q,2)
F.hardtanh(x) F.relu6(x) F.mse_loss(x,y) F.mse_loss(x,y,reduction='sum') F.mse_loss(x,y,reduction='none') F.smooth_l1_loss(x,y)
F.huber_loss(x,y) F.huber_loss(x,y,reduction='sum') F.binary_cross_entropy(x,y.detach())
F.binary_cross_entropy_with_logits(x,y) F.binary_cross_entropy_with_logits(x,y,reduction='sum')
"""
OTHERS = """
1-x x.clamp_min(.1) torch.stack([x,y]) x.repeat(2,1) x.tile(2) torch.diag_embed(v)
torch.baddbmm(torch.zeros(2,3,3),b,b.mT) torch.einsum('ij,jk',x,m) torch.kron(q,q) torch.logdet(q)
torch.matrix_exp(q) torch.trapz(v) F.celu(x)
F.rms_norm(x,(4,)) F.embedding(i[:,None],x) F.pad(x,(1,1)) F.pad(im,(1,1,1,1),mode='reflect')
F.pad(im,(1,1,1,1),mode='replicate') F.pad(im,(1,1,1,1),mode='circular')
F.pixel_shuffle(torch.ones(1,4,2,2,requires_grad=True),2)
F.soft_margin_loss(x,torch.ones(3,4)) F.multi_margin_loss(q,lab) F.pairwise_distance(x,y)
F.scaled_dot_product_attention(b,b,b) c.real c.imag c.conj() x.clone().zero_()
torch.ldexp(x,y) torch.heaviside(x,y) torch.mvlgamma(x+3,2) torch.dist(x,y) torch.renorm(x,2,0,1.)
torch.block_diag(x,y) torch.cartesian_prod(v,v) torch.combinations(v) torch.atleast_2d(v) x.rot90()
torch.addr(torch.zeros(4,4),v,v) torch.addbmm(torch.zeros(3,3),b,b.mT) torch.addmv(torch.zeros(3),x,v)
torch.nanmean(x) torch.quantile(x,.3) torch.nanquantile(x,.3) x.floor_divide(y) x.div(y,rounding_mode='floor')
torch.rsub(x,y)
"""
"""Here Flambeau composes where PyTorch has one node, or the reverse; or a record serves several of its functions."""


def names(lib: Any) -> dict[str, Any]:
    """What an expression may use."""
    x = lib.arange(1.0, 13.0).reshape(3, 4).div(20).requires_grad_()
    y = lib.full((3, 4), 0.4, requires_grad=True)
    return {
        "torch": lib, "F": lib.nn.functional, "x": x, "y": y,
        "m": lib.full((4, 3), 0.3, requires_grad=True), "v": lib.full((4,), 0.2, requires_grad=True),
        "q": (lib.eye(3) * 2 + 0.1).requires_grad_(), "c": lib.complex(x.detach(), y.detach()).requires_grad_(),
        "b": lib.full((2, 3, 4), 0.3, requires_grad=True), "im": lib.ones(2, 3, 8, 8, requires_grad=True),
        "w": lib.ones(4, 3, 3, 3, requires_grad=True), "i": lib.tensor([0, 2]), "mask": lib.ones(3, 4) > 0,
        "lab": lib.tensor([0, 1, 2]), "pix": lib.zeros(2, 8, 8, dtype=lib.int64),
    }  # fmt: skip


def name(lib: Any, expression: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = eval(expression, names(lib)).grad_fn
    return None if made is None else type(made).__name__


@pytest.mark.parametrize("expression", SAME.split())
def test_a_node_is_named_as_pytorchs(expression: str) -> None:
    assert name(flambeau, expression) == name(torch, expression)


@pytest.mark.parametrize("expression", OTHERS.split())
def test_names_that_differ(expression: str) -> None:
    """Kept so that the list above is true: what has become the same moves there."""
    ours = name(flambeau, expression)
    assert ours is not None
    assert ours != name(torch, expression)


@pytest.mark.parametrize(
    "loss", ["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "l1_loss"]
)
def test_a_loss_is_followed_by_what_it_was_computed_from(loss: str) -> None:
    chains = []
    for lib in (flambeau, torch):
        x = lib.ones(3, requires_grad=True)
        node, chain = getattr(lib.nn.functional, loss)(x * 2, lib.zeros(3)).grad_fn, []
        while node is not None:
            chain.append(type(node).__name__)
            node = node.next_functions[0][0] if node.next_functions else None
        chains.append(chain)
    assert chains[0] == chains[1]


def test_text() -> None:
    for lib in (flambeau, torch):
        x = lib.ones(2, requires_grad=True)
        assert repr(x) == "tensor([1., 1.], requires_grad=True)"
        assert repr(x + 1) == "tensor([2., 2.], grad_fn=<AddBackward0>)"
        assert (x + 1).grad_fn.name() == "AddBackward0"
        assert (x + 1).grad_fn.metadata == {}
        leaf, number = (x + 1).grad_fn.next_functions[0]
        assert (type(leaf).__name__, leaf.name(), number) == (
            "AccumulateGrad",
            "torch::autograd::AccumulateGrad",
            0,
        )
        assert leaf.variable is x
