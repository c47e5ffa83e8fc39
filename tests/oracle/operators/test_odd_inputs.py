"""Calls with odd inputs, each of which a search of random calls once found to differ: the result or the refusal."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from support import same, torch

import flambeau

CALLS = {
    "permute of an int": lambda m: m.permute(m.ones(2), 0),
    "permute of several": lambda m: m.permute(m.ones(2, 3), 1, 0),
    "method permute of several": lambda m: m.ones(2, 3).permute(1, 0),
    "lerp by a complex number": lambda m: m.lerp(m.zeros(2), m.ones(2), 1j),
    "lerp by a real complex number": lambda m: m.lerp(m.zeros(2), m.ones(2), 0.5 + 0j),
    "lerp of doubles by a complex number": lambda m: m.lerp(m.zeros(2).double(), m.ones(2).double(), 1j),
    "addcmul of a complex value": lambda m: m.addcmul(m.ones(2), m.ones(2), m.ones(2), value=1j),
    "leaky_relu of a complex slope": lambda m: m.nn.functional.leaky_relu(m.ones(2), 1j),
    "abs_ of complex": lambda m: m.ones(2, dtype=m.complex64).abs_(),
    "absolute_ of complex": lambda m: m.ones(2, dtype=m.complex64).absolute_(),
    "clamp_max without": lambda m: m.clamp_max(m.ones(2)),
    "clamp_min_ without": lambda m: m.ones(2).clamp_min_(),
    "conj_physical_ of expanded": lambda m: m.ones(1).expand(3).conj_physical_(),
    "nan_to_num_ of expanded": lambda m: m.tensor([2]).expand(3).nan_to_num_(),
    "flip without": lambda m: m.ones(2).flip(),
    "tile without": lambda m: m.tile(m.ones(2)),
    "sum_to_size without": lambda m: m.ones(2).sum_to_size(),
    "sum_to_size by name": lambda m: m.ones(2, 3).sum_to_size(size=(1, 3)),
    "resize_ by name": lambda m: m.ones(4).resize_(size=(2, 2)),
    "squeeze of several": lambda m: m.ones(1, 2, 1).squeeze(0, 2),
    "squeeze of none": lambda m: m.ones(1, 2, 1).squeeze(),
    "squeeze by name": lambda m: m.ones(1, 2, 1).squeeze(dim=(0, 2)),
    "squeeze by NumPy's name": lambda m: m.ones(1, 2, 1).squeeze(axis=0),
    "squeeze_ of several": lambda m: m.ones(1, 2, 1).squeeze_(0, 2),
    "count_nonzero of several": lambda m: m.ones(3, 2, 1).count_nonzero(0, 2),
    "count_nonzero by name": lambda m: m.ones(3, 2, 1).count_nonzero(dim=(0, 1)),
    "broadcast_to numbers": lambda m: m.ones(2).broadcast_to(3, 2),
    "broadcast_to by name": lambda m: m.ones(2).broadcast_to(size=(3, 2)),
    "_assert of what holds": lambda m: m._assert(m.ones(1), "why"),
    "_assert of what does not": lambda m: m._assert(m.zeros(1), "why"),
    "hsplit at several": lambda m: m.ones(2, 4).hsplit(1, 3),
    "vsplit at several": lambda m: m.ones(4, 2).vsplit(1, 3),
    "dsplit in two": lambda m: m.ones(1, 2, 4).dsplit(2),
    "cumsum_ of booleans": lambda m: m.tensor([True]).cumsum_(0),
    "float_power_ of floats": lambda m: m.ones(2).float_power_(2),
    "float_power_ of doubles": lambda m: m.ones(2, dtype=m.float64).float_power_(2),
    "float_power_ of complex": lambda m: m.ones(2, dtype=m.float64).float_power_(m.ones(2, dtype=m.complex64)),
    "threshold into": lambda m: m.threshold(m.tensor([1.0, 3.0]), 2, 7, out=m.empty(0)),
    "hardshrink into": lambda m: m.hardshrink(m.tensor([0.2, 3.0]), out=m.empty(2)),
    "slice_scatter into": lambda m: m.slice_scatter(m.zeros(3), m.ones(1), 0, 1, 2, out=m.empty(0)),
    "max into doubles": lambda m: m.max(m.tensor([1.0, 3.0]), out=m.empty((), dtype=m.float64)),
    "std into halves": lambda m: m.std(m.tensor([1.0, 3.0]), 0, out=m.empty((), dtype=m.float16)),
    "var into integers": lambda m: m.var(m.tensor([1.0, 3.0]), 0, out=m.empty((), dtype=m.int64)),
    "logsumexp into complex": lambda m: m.logsumexp(m.ones(2), 0, out=m.empty((), dtype=m.complex64)),
    "argmax into a list": lambda m: m.argmax(m.ones(2), out=[m.empty((), dtype=m.int64)]),
    "logit with a tensor": lambda m: m.logit(m.full((2,), 0.9), m.ones(2)),
    "logit with a number in a tensor": lambda m: m.logit(m.full((2,), 0.9), m.tensor(0.25)),
    "nan_to_num with a tensor": lambda m: m.nan_to_num(m.full((2,), float("nan")), m.ones(2)),
    "searchsorted of numbers": lambda m: m.searchsorted(m.ones(()), m.ones(())),
    "searchsorted of a number": lambda m: m.searchsorted(m.ones(()), m.ones(3)),
    "searchsorted in rows": lambda m: m.searchsorted(m.ones(2, 3), 1.0),
    "assigning too many": lambda m: m.ones(3).__setitem__(slice(0, 2), m.ones(3)),
    "assigning too many dimensions": lambda m: m.ones(3, 3).__setitem__(0, m.ones(2, 3)),
    "expand to fewer": lambda m: m.ones(2, 3, dtype=m.float64).expand(3),
    "a mask of bytes": lambda m: m.ones(2).masked_fill(m.ones(2, dtype=m.uint8), 0),
    "bernoulli of more than 1": lambda m: m.bernoulli(m.tensor([2.0])),
    "bernoulli_ of nan": lambda m: m.ones(1).bernoulli_(m.tensor([float("nan")])),
    "gradient of bytes": lambda m: m.gradient(m.tensor([1, 2], dtype=m.uint8)),
    "lgamma": lambda m: m.lgamma(m.tensor([float("-inf"), float("inf"), float("nan"), -1.0, 0.0, 0.5, 1e30])),
    "lgamma of halves": lambda m: m.lgamma(m.tensor([float("-inf"), 2.5], dtype=m.float16)),
    "quantile of less than 0": lambda m: m.quantile(m.ones(3), m.tensor(-1.0)),
    "quantile of nan": lambda m: m.quantile(m.ones(3), m.tensor([0.5, float("nan")])),
    "isin of booleans": lambda m: m.isin(m.tensor([1]), m.tensor([True])),
    "mvlgamma of booleans": lambda m: m.mvlgamma(m.tensor([True]), 1),
    "nanmean of complex": lambda m: m.nanmean(m.ones(2, dtype=m.complex64)),
    "kl_div of integers": lambda m: m.nn.functional.kl_div(m.tensor([1]), m.tensor([1.0])),
    "lu_unpack of a number": lambda m: m.lu_unpack(m.ones(()), m.ones((), dtype=m.int32)),
    "cholesky of bytes": lambda m: m.cholesky(m.ones(2, 2, dtype=m.uint8)),
    "cholesky of nothing": lambda m: m.cholesky(m.empty(2, 0)),
    "cholesky_inverse of zeros": lambda m: m.cholesky_inverse(m.zeros(2, 2)),
    "cholesky_inverse of a batch": lambda m: m.cholesky_inverse(m.eye(2) * m.tensor([1.0, 0.0])[:, None, None]),
    "matrix_norm of nothing": lambda m: m.linalg.matrix_norm(m.empty(2, 0, 3), 2),
    "matrix_norm of no columns": lambda m: m.linalg.matrix_norm(m.empty(3, 0), 1),
    "take_along_dim from the end": lambda m: m.take_along_dim(m.arange(6.0).view(2, 3), m.tensor([[-1]]), 1),
    "take_along_dim round and round": lambda m: m.take_along_dim(m.arange(5.0), m.tensor([12, -6]), 0),
    "take_along_dim by int32": lambda m: m.take_along_dim(m.ones(2), m.tensor([1], dtype=m.int32), 0),
    "linalg.vander of a number": lambda m: m.linalg.vander(m.tensor(2.0), N=3),
    "addmm by a complex number": lambda m: m.addmm(_i(m, 2, 2), _i(m, 2, 3), _i(m, 3, 2), beta=2j, alpha=1 - 1j),
    "addmm_ by a complex number": lambda m: _i(m, 2, 2).addmm_(_i(m, 2, 3), _i(m, 3, 2), beta=2j),
    "addmv by a complex number": lambda m: m.addmv(_i(m, 2), _i(m, 2, 3), _i(m, 3), beta=0, alpha=1j),
    "baddbmm by a complex number": lambda m: m.baddbmm(_i(m, 2), _i(m, 1, 2, 3), _i(m, 1, 3, 2), alpha=1j),
    "addmm of reals by a complex number": lambda m: m.addmm(m.ones(2, 2), m.ones(2, 2), m.ones(2, 2), alpha=1j),
    "addmm by a complex number that is real": lambda m: m.addmm(m.ones(1, 1), m.ones(1, 1), m.ones(1, 1), beta=2 + 0j),
    "linspace of vectors": lambda m: m.linspace(m.ones(2), m.ones(3), 4),
    "linspace between whole numbers": lambda m: m.linspace(4.3, -3, 50, dtype=m.int64),
    "logspace between whole numbers": lambda m: m.logspace(1, 2.9, 4, dtype=m.int32),
    "bitwise_and of numbers": lambda m: m.bitwise_and(1, 2),
    "remainder of numbers": lambda m: m.remainder(1, 2),
    "xlogy of numbers": lambda m: m.xlogy(1, 2),
    "mul of numbers": lambda m: m.mul(3, 2),
    "gather into doubles": lambda m: m.gather(m.ones(2), 0, m.tensor([1]), out=m.empty(1, dtype=m.float64)),
    "gather into itself": lambda m: (lambda x: m.gather(x, 0, m.tensor([2, 1, 0]), out=x))(m.arange(3.0)),
    "scatter into itself": lambda m: (lambda x: m.scatter(x, 0, m.tensor([0]), m.ones(1), out=x))(m.zeros(3)),
    "gather of none by floats": lambda m: m.gather(m.ones(3), 0, m.empty(0)),
    "scatter of none by floats": lambda m: m.scatter(m.ones(3), 0, m.empty(0), m.ones(3)),
    "scatter_add_ of none by floats": lambda m: m.ones(3).scatter_add_(0, m.empty(0), m.ones(3)),
    "complex into complex128": lambda m: m.complex(m.ones(2), m.ones(2), out=m.empty(2, dtype=m.complex128)),
    "polar into complex128": lambda m: m.polar(m.ones(2), m.ones(2), out=m.empty(2, dtype=m.complex128)),
    "multinomial into doubles": lambda m: m.multinomial(m.ones(2), 1, out=m.empty(1, dtype=m.float64)),
    "where into doubles": lambda m: m.where(m.tensor([True]), m.ones(1), m.ones(1), out=m.empty(1, dtype=m.float64)),
    "tril into doubles": lambda m: m.tril(m.ones(2, 2), out=m.empty(2, 2, dtype=m.float64)),
    "diag into doubles": lambda m: m.diag(m.ones(2), out=m.empty(2, 2, dtype=m.float64)),
    "nonzero into int32": lambda m: m.nonzero(m.ones(2), out=m.empty(2, 1, dtype=m.int32)),
    "randint into doubles": lambda m: m.randint(1, (3,), out=m.empty(3, dtype=m.float64)),
    "all into bytes": lambda m: m.all(m.ones(2), 0, out=m.empty((), dtype=m.uint8)),
    "any of bytes into booleans": lambda m: m.any(m.ones(2, dtype=m.uint8), 0, out=m.empty((), dtype=m.bool)),
    "rand_like by a generator": lambda m: m.rand_like(m.ones(2), generator=m.Generator().manual_seed(3)),
    "randn_like by a generator": lambda m: m.randn_like(m.ones(2), generator=m.Generator().manual_seed(3)),
    "randint_like by a generator": lambda m: m.randint_like(m.ones(2), 9, generator=m.Generator().manual_seed(3)),
    "tensordot of one against several": lambda m: m.tensordot(m.ones(1, 1), m.ones(2, 1, 3), ((0, 1), (2, 0))),
    "put_ of a number": lambda m: m.ones(()).put_(m.tensor(0), m.tensor(2.0), accumulate=True),
    "put of a number": lambda m: m.ones(()).put(m.tensor(0), m.tensor(2.0)),
    "multi_dot of nothing between": lambda m: m.linalg.multi_dot([m.ones(2, 0), m.ones(0, 2)]),
    "circular padding of what is cut": lambda m: m.nn.functional.pad(
        m.arange(32.0).view(1, 2, 4, 4), (-1, 1, -2, 1), "circular"
    ),
    "renorm to a huge norm": lambda m, x: m.renorm(x[None], 2, 0, 1e300),
    "xlog1py of a gradient of 0": lambda m, x: m.special.xlog1py(x, m.tensor([-5.0, 1.0, 2.0]))[1:],
    "float_power in doubles": lambda m, x: m.float_power(x - 2.5, 1001) * 1e-30,
    "istft of both sides": lambda m: m.istft(m.arange(30.0).view(10, 3).to(m.complex64), 10).round(decimals=4),
    "variances for all of a dimension": lambda m: m.nn.functional.gaussian_nll_loss(
        m.ones(2, 4, 3), m.zeros(2, 4, 3), m.full((1, 4, 3), 2.0)
    ),
    "variances of two dimensions": lambda m: m.nn.functional.gaussian_nll_loss(
        m.ones(2, 4, 3), m.zeros(2, 4, 3), m.full((1, 1, 3), 2.0)
    ),
    "huber_loss by a word": lambda m: m.nn.functional.huber_loss(m.ones(3), m.zeros(3), delta="a"),
    "batch_norm of no eps": lambda m: m.nn.functional.batch_norm(m.ones(2, 3), None, None, training=True, eps=0),
    "batch_norm of negative eps": lambda m: m.nn.functional.batch_norm(m.ones(2, 3), m.ones(3), m.ones(3), eps=-1.0),
    "scatter of none in other dimensions": lambda m: m.scatter(m.ones(3), 0, m.empty(2, 0, dtype=m.int64), m.ones(3)),
    "adaptive_avg_pool2d of a matrix": lambda m: m.nn.functional.adaptive_avg_pool2d(m.ones(2, 2), (2, 2)),
    "adaptive_max_pool3d of three": lambda m: m.nn.functional.adaptive_max_pool3d(m.ones(2, 2, 2), (2, 2, 2)),
    "narrow from a vector": lambda m: m.narrow(m.ones(3), 0, m.tensor([1]), 1),
    "narrow from a float": lambda m: m.narrow(m.ones(3), 0, m.tensor(1.0), 1),
    "conv1d of integers": lambda m: m.conv1d(m.arange(10).view(1, 2, 5), m.arange(8).view(2, 2, 2), m.tensor([1, 2]), 2, 1),
    "conv1d of bytes": lambda m: m.conv1d(m.full((1, 2, 5), 9, dtype=m.uint8), m.full((2, 2, 2), 17, dtype=m.uint8)),
    "conv2d of integers in groups": lambda m: m.conv2d(
        m.arange(50, dtype=m.int32).view(1, 2, 5, 5), m.arange(8, dtype=m.int32).view(2, 1, 2, 2), groups=2
    ),
    "conv_transpose2d of integers": lambda m: m.conv_transpose2d(
        m.arange(25).view(1, 1, 5, 5), m.arange(4).view(1, 1, 2, 2), stride=2, padding=1
    ),
    "hinge_embedding_loss of integers": lambda m: m.nn.functional.hinge_embedding_loss(
        m.tensor([1, -2, 3]), m.tensor([1, -1, 0]), 2.7, reduction="none"
    ),
    "hinge_embedding_loss of integers in sum": lambda m: m.nn.functional.hinge_embedding_loss(
        m.tensor([1, -2]), m.tensor([1, -1]), reduction="sum"
    ),
    "hinge_embedding_loss of integers in mean": lambda m: m.nn.functional.hinge_embedding_loss(
        m.tensor([1, -2]), m.tensor([1, -1])
    ),
    "logits of doubles, targets of floats": lambda m: _bce(m, m.ones(2).double(), m.full((2,), 0.3)),
    "logits of floats, targets of doubles": lambda m: _bce(m, m.ones(2), m.full((2,), 0.3).double()),
    "logits and targets of integers": lambda m: _bce(m, m.ones(2), m.ones(2).long()),
    "logits and weights of doubles": lambda m: _bce(m, m.ones(2), m.zeros(2), m.ones(2).double()),
    "logits and classes' weights of doubles": lambda m: _bce(m, m.ones(2), m.ones(2), pos_weight=m.ones(2).double()),
    "cross_entropy of no classes": lambda m: m.nn.functional.cross_entropy(m.ones(2, 0), m.ones(2, 0)),
    "cross_entropy of no rows": lambda m: m.nn.functional.cross_entropy(m.ones(0, 3), m.ones(0).long()),
    "cross_entropy of no rows smoothed": lambda m: m.nn.functional.cross_entropy(
        m.ones(0, 3), m.ones(0, 3), label_smoothing=0.1
    ),
    "polygamma of infinity": lambda m: m.polygamma(99, m.tensor([m.inf, -m.inf, m.nan])),
    "polygamma of a high order": lambda m: m.polygamma(200, m.tensor([m.inf, 1.0, -0.5]).double()),
    "polygamma of a higher order": lambda m: m.polygamma(60, m.tensor([m.inf, 1.0, 0.5, 0.0])),
    "trigamma of infinity": lambda m: m.polygamma(1, m.tensor([m.inf, -m.inf, m.nan, 1.0])),
    "zeta of infinity": lambda m: m.special.zeta(m.tensor([3.0, 1.0, 0.5, m.nan]).double(), m.tensor(m.inf)),
    "cosine_similarity of complex": lambda m: m.nn.functional.cosine_similarity(_i(m, 2, 2), _i(m, 2, 2)),
    "cosine_similarity by less than nothing": lambda m: m.nn.functional.cosine_similarity(m.ones(2, 2), m.ones(2, 2), eps=-1.0),
    "cosine_similarity mixed": lambda m: m.nn.functional.cosine_similarity(m.ones(2, 3), m.ones(2, 3).double()),
    "ldexp mixed": lambda m: m.ldexp(m.ones(2).double(), m.full((2,), 200.0)),
    "chebyshev of a high degree": lambda m: m.special.chebyshev_polynomial_w(m.tensor([-1.0, 1.0, 0.0]), 301),
    "chebyshev of the highest degree": lambda m: m.special.shifted_chebyshev_polynomial_t(m.tensor([0.0, 1.0]), 1 << 40),
    "bags of nan": lambda m: m.nn.functional.embedding_bag(m.tensor([[0, 1, 2]]), _nans(m), mode="max"),
    "bags of nan by offsets": lambda m: m.nn.functional.embedding_bag(
        m.tensor([0, 1, 2, 1]), _nans(m), m.tensor([0, 2]), mode="max"
    ),
    "a reduction by a number": lambda m: m.nn.functional.mse_loss(m.ones(2), m.zeros(2), -1, 0),
    "sizes of bools": lambda m: m.ones(2).new_ones((2, True)),
    "sizes of bools alone": lambda m: m.ones(2).new_ones((True, 2)),
    "a full of bools": lambda m: m.full((2, True), 1),
    "fftn of bools": lambda m: m.fft.fftn(m.ones(2, 2), (2, True)),
    "padding that cuts off more than there is": lambda m: m.nn.functional.pad(m.ones(2), (-3, 4)),
    "bernoulli into another shape": lambda m: m.bernoulli(m.ones(3), out=m.empty(2)),
    "einsum by a number": lambda m: m.einsum("i j, j1 -> i", m.ones(2, 3), m.ones(3, 2)),
    "einsum to two outputs": lambda m: m.einsum("ij->i->j", m.ones(2, 3)),
    "einsum by two dots": lambda m: m.einsum("i..j", m.ones(2, 3)),
    "einsum by two ellipses": lambda m: m.einsum("...i...", m.ones(2, 3)),
    "einsum to two ellipses": lambda m: m.einsum("...i->...i...", m.ones(2, 3)),
    "einsum to a dot": lambda m: m.einsum("ij->i.", m.ones(2, 3)),
    "dropout of more than all": lambda m: m.dropout(m.ones(2), 1.5, True),
    "more bytes than 63 bits count": lambda m: m.empty(1 << 60, dtype=m.float64),
    "more elements than 64 bits count": lambda m: m.zeros(1 << 40, 1 << 40, dtype=m.uint8),
    "a view of more elements than 63 bits count": lambda m: m.ones(1).expand(1 << 40, 1 << 40),
    "a view of many elements": lambda m: m.ones(1).expand(1 << 31, 1 << 31)[0, :2],
    "max_unpool1d by float strides": lambda m: m.nn.functional.max_unpool1d(m.ones(1, 2, 2), m.zeros(1, 2, 2).long(), 2, (2.0, 2.0), 0, (4,)),
    "max_unpool2d by a float kernel": lambda m: m.nn.functional.max_unpool2d(m.ones(1, 1, 2, 2), m.zeros(1, 1, 2, 2).long(), 2.0, None, 0, (4, 4)),
    "max_unpool2d to float sizes": lambda m: m.nn.functional.max_unpool2d(m.ones(1, 1, 2, 2), m.zeros(1, 1, 2, 2).long(), 2.0)[0],
    "conv_transpose2d to no pixel": lambda m: m.conv_transpose2d(m.ones(1, 2, 5, 5), m.ones(2, 3, 2, 2), None, 1, 3),
    "conv_transpose1d to no element": lambda m: m.conv_transpose1d(m.ones(1, 2, 5), m.ones(2, 3, 2), None, 1, 3),
    "conv2d of no pixel": lambda m: m.conv2d(m.ones(1, 2, 0, 5), m.ones(3, 2, 2, 2), padding=1),
    "conv1d of no element": lambda m: m.conv1d(m.ones(1, 2, 0), m.ones(3, 2, 2), padding=1),
    "LayerNorm of a bool": lambda m: m.nn.LayerNorm(True),
    "isin 64 bits": lambda m: m.isin(m.ones(2), 1 << 63),
    "isin 65 bits": lambda m: m.isin(m.ones(2), 1 << 64),
    "diff of order 0 along a wrong dim": lambda m: m.diff(m.ones(2), n=0, dim=3, prepend=m.ones(2)),
    "as_tensor of bytes": lambda m: m.as_tensor(b"xxxx"),
    "as_tensor of a bytearray": lambda m: m.as_tensor(bytearray(b"xxxx")),
    "to_sparse of a vector": lambda m: m.ones(2, 3).to_sparse(m.tensor([1])),
    "to_sparse of a bool": lambda m: m.ones(2, 3).to_sparse(m.tensor(True)),
    "scatter_ of nothing": lambda m: m.ones(2, 3).int().scatter_(1, m.ones(0).long(), 1e300),
    "addmm_ of another size": lambda m: m.ones(1, 1).addmm_(m.ones(3, 3), m.ones(3, 3)),
    "addr_ of a vector": lambda m: m.ones(1).addr_(m.ones(3), m.ones(3)),
    "frobenius_norm along a number in a tensor": lambda m: m.frobenius_norm(m.ones(2, 3), m.tensor(0)),
    "norm along a NumPy number": lambda m: m.linalg.norm(m.ones(2, 3), 2, np.int64(-1)),
    "cdist by nan": lambda m: m.cdist(m.ones(2, 3), m.ones(2, 3), m.nan),
    "pinv with a huge limit": lambda m: m.linalg.pinv(m.eye(2), 1 << 70),
    "matrix_rank with a huge limit": lambda m: m.linalg.matrix_rank(m.eye(2), tol=1 << 70),
    "bernoulli by a number in a tensor": lambda m: m.ones(4).bernoulli(m.tensor(1)),
    "fill_ of a tuple": lambda m: m.ones(2).bool().fill_((0,)),
    "fill_ of a dtype": lambda m: m.ones(2).bool().fill_(m.float32),
    "fill_ of complex without overflow": lambda m: m.ones(1, dtype=m.complex64).fill_(1e300),
    "copy_ of a NumPy number": lambda m: m.ones(2).copy_(np.float32(2)),
    "threshold by a NumPy bool": lambda m: m.threshold(m.tensor([0.5, 2.0]).requires_grad_(), np.True_, 3).detach(),
    "subtract of a NumPy bool": lambda m: m.ones(2).subtract(np.True_),
    "hardshrink by a NumPy number": lambda m: m.hardshrink(m.tensor([0.5, 2.0]).requires_grad_(), np.int64(1)).detach(),
    "random_ without an end": lambda m: m.ones(2).random_((1 << 24) - 1, None),
    "addmm of bytes by a negative number": lambda m: m.addmm(*[m.tensor([[3]], dtype=m.uint8)] * 3, beta=-7, alpha=-7),
    "addmv of bytes by a number of more bits": lambda m: m.addmv(m.ones(1).byte(), m.ones(1, 1).byte(), m.ones(1).byte(), alpha=300),
    "addmm of integers by infinity": lambda m: m.addmm(*[m.ones(1, 1).int()] * 3, alpha=float("inf")),
    "addbmm of integers by nan": lambda m: m.addbmm(m.ones(1, 1).int(), *[m.ones(1, 1, 1).int()] * 2, beta=m.nan),
    "addmm of floats by a number of 64 bits": lambda m: m.addmm(*[m.ones(1, 1)] * 3, beta=1 << 63, alpha=1 << 63),
    "addmv of doubles by a number of 64 bits": lambda m: m.addmv(m.ones(1).double(), m.ones(1, 1).double(), m.ones(1).double(), alpha=(1 << 64) - 1),
    "addmm without elements by a number of more bits": lambda m: m.addmm(*[m.ones(0, 0).byte()] * 3, alpha=300),
    "renorm to nan": lambda m: m.ones(2, 3).renorm(m.nan, 0, 1.0),
    "norm_except_dim of integers": lambda m: m.norm_except_dim(m.ones(5).int(), 1),
    "randint of uint16": lambda m: m.randint(65536, (9,), dtype=m.uint16, generator=m.Generator().manual_seed(3)),
    "randint of uint32": lambda m: m.randint(3, 1 << 32, (9,), dtype=m.uint32, generator=m.Generator().manual_seed(3)),
    "randint of uint64": lambda m: m.randint(
        9, (1 << 63) - 1, (9,), dtype=m.uint64, generator=m.Generator().manual_seed(3)
    ),
    "random_ of uint16 without bounds": lambda m: m.ones(2, dtype=m.uint16).random_(),
    "masked_fill of float8": lambda m: m.ones(2).to(m.float8_e5m2).masked_fill(m.tensor([True, False]), 2.0),
    "masked_fill_ of uint16": lambda m: m.ones(2, dtype=m.uint16).masked_fill_(m.tensor(True), 2),
    "assigning to masked float8": lambda m: m.ones(2).to(m.float8_e4m3fn).__setitem__(m.tensor([True, False]), 2.0),
    "clip between a number and a gradient": lambda m: m.ones(2).clip(0.5, m.tensor(1.5, requires_grad=True)),
    "clamp_ between a gradient and a number": lambda m: m.ones(2).clamp_(m.tensor(0.5, requires_grad=True), 3),
    "fill_ of integers by a gradient": lambda m: m.ones(2, 2).int()[0].fill_(m.tensor(2.0, requires_grad=True)).detach(),
    "copy_ of a gradient to integers": lambda m: m.ones(2).int().copy_(m.ones(2, requires_grad=True) * 3),
    "assigning a gradient to booleans": lambda m: (
        lambda x: (x.__setitem__(0, m.tensor(0.0, requires_grad=True)), x)[1]
    )(m.ones(2).bool()),
    "vsplit at a bool": lambda m: m.ones(4, 2).vsplit(m.tensor(True)),
    "hsplit at several with a bool": lambda m: m.ones(2, 4).hsplit(m.tensor(1), m.tensor(True)),
    "dsplit at a bool in a list": lambda m: m.dsplit(m.ones(1, 2, 4), [m.tensor(True)]),
    "norm_except_dim of no rows": lambda m: m.norm_except_dim(m.ones(0, 2)),
    "norm_except_dim of no columns": lambda m: m.norm_except_dim(m.ones(2, 0), 2, 1),
    "norm_except_dim of no slices between": lambda m: m.norm_except_dim(m.ones(2, 0, 3), 2, 1),
    "norm_except_dim of all integers": lambda m: m.norm_except_dim(m.ones(5).int(), 1, -1),
    "baddbmm of a matrix": lambda m: m.baddbmm(m.ones(3, 3), m.ones(3, 4), m.ones(2, 4, 3)),
    "baddbmm of other batches": lambda m: m.baddbmm(m.ones(2, 3, 3), m.ones(3, 3, 4), m.ones(2, 4, 3)),
    "baddbmm_ of two dtypes": lambda m: m.ones(2, 3, 3).baddbmm_(m.ones(2, 3, 4), m.ones(2, 4, 3).double()),
    "baddbmm_ of integers and other sizes": lambda m: m.ones(1, 3, 3).int().baddbmm_(m.ones(1, 3, 4), m.ones(1, 3, 3)),
    "linear with a number of another dtype": lambda m: m.nn.functional.linear(m.ones(2, 3), m.ones(4, 3), m.tensor(2)),
    "linear with a bias of two dimensions": lambda m: m.nn.functional.linear(m.ones(2, 3), m.ones(4, 3), m.ones(2, 1)),
    "linear with too many biases": lambda m: m.nn.functional.linear(m.ones(2, 3), m.ones(4, 3), m.ones(3, 1)),
    "pinv with a limit that requires a gradient": lambda m: m.linalg.pinv(m.eye(2), m.tensor(0.1, requires_grad=True)),
    "pinv of a limit under no_grad": lambda m: m.no_grad()(m.linalg.pinv)(m.eye(2), m.tensor(0.1, requires_grad=True)),
    "unfold of integers": lambda m: m.nn.functional.unfold(m.ones(1, 2, 3, 3).long(), [3, 2]),
    "fold of bytes": lambda m: m.nn.functional.fold(m.ones(1, 6, 2).byte(), (3, 3), (3, 2)),
    "unfold of booleans": lambda m: m.nn.functional.unfold(m.eye(3).bool().view(1, 1, 3, 3), 2),
    "threshold_ of expanded": lambda m: m.nn.functional.threshold_(m.tensor([0.05, 2.0]).expand(3, 2), 0.1, 5.0),
    "index_add_ in a dimension of the tensor alone": lambda m: m.ones(2, 3).index_add_(1, m.tensor([0]), m.ones(2)),
    "index_reduce_ in a dimension of the tensor alone": lambda m: m.ones(1, 1, 2).index_reduce_(
        -1, m.tensor([0, 0]), m.ones(2), "prod"
    ),
    "attention with a negative dropout": lambda m: _attention(m, -1.0),
    "attention with a dropout of nan": lambda m: _attention(m, m.nan),
    "matrix_power into": lambda m: m.linalg.matrix_power(m.eye(2), 3, out=m.empty(0, dtype=m.float64)),
}  # fmt: skip

GRADIENTS = {
    "nextafter": lambda m, x: m.nextafter(x, m.tensor([1.0, 0.0, 3.0])),
    "nextafter of the other": lambda m, x: m.nextafter(m.zeros(3), x),
    "take of a number": lambda m, x: x.sum().take(m.tensor(0)),
    "index_fill twice": lambda m, x: m.zeros(4).index_fill(0, m.tensor([1, 1]), x[2]),
    "pdist of one": lambda m, x: m.nn.functional.pdist(x[None]),
    "scatter_reduce of zeros": lambda m, x: x.scatter_reduce(0, m.tensor([0, 1, 1]), m.tensor([2.0, 0.0, 3.0]), "prod"),
    "scatter_reduce from zeros": lambda m, x: m.tensor([4.0, 5.0, 6.0]).scatter_reduce(0, m.tensor([1, 1, 2]), x, "prod"),
    "scatter_reduce of a zero": lambda m, x: x.scatter_reduce(0, m.tensor([0, 0]), m.tensor([2.0, 3.0]), "prod"),
    "scatter_reduce without itself": lambda m, x: x.scatter_reduce(
        0, m.tensor([0, 0]), m.tensor([2.0, 3.0]), "prod", include_self=False
    ),
    "index_reduce of zeros": lambda m, x: x.index_reduce(0, m.tensor([0, 0]), m.tensor([2.0, 0.0]), "prod"),
    "index_reduce from zeros": lambda m, x: m.tensor([4.0, 5.0]).index_reduce(0, m.tensor([0, 0, 1]), x, "prod"),
    "cross_entropy of ignored targets": lambda m, x: m.nn.functional.cross_entropy(
        x[None], m.tensor([1]), ignore_index=1, label_smoothing=0.1
    ),
    "cross_entropy of targets without weight": lambda m, x: m.nn.functional.cross_entropy(
        x.repeat(2, 1), m.tensor([1, 0]), m.tensor([1.0, 0.0, 1.0]), ignore_index=0
    ),
    "circular padding of what is cut": lambda m, x: m.nn.functional.pad(x[None], (-1, 1), "circular"),
    "gather of none in other dimensions": lambda m, x: m.gather(x, 0, m.empty(2, 0, dtype=m.int64)),
    "hardtanh of nan": lambda m, x: m.nn.functional.hardtanh(x / x),
    "elu of nan": lambda m, x: m.nn.functional.elu(x / x),
    "bags of nan": lambda m, x: m.nn.functional.embedding_bag(m.tensor([[0, 1, 2], [1, 0, 2]]), (x / x)[:, None], mode="max"),
    "bags of nan by offsets": lambda m, x: m.nn.functional.embedding_bag(
        m.tensor([0, 1, 2, 1]), (x / x)[:, None], m.tensor([0, 2]), mode="max"
    ),
    "istft of both sides": lambda m, x: m.istft((x * x[:, None]).to(m.complex64), 3, 1),
    "cdist of a huge order": lambda m, x: m.cdist(x[:, None], m.tensor([[0.5], [4.0]]), 1e300),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    found = []
    for room in (torch, flambeau):
        x = room.tensor([0.0, 2.0, 3.0], requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = GRADIENTS[name](room, x)
        given = room.arange(1.0, y.numel() + 1).view(y.shape)
        found.append(room.autograd.grad(y, x, given)[0].round(decimals=4))
    same(found[1], found[0], 4)


def _attention(m: Any, dropout: float) -> Any:
    x = m.arange(12.0).view(3, 1, 4) / 12
    attended, _ = m.nn.functional.multi_head_attention_forward(
        x, x, x, 4, 2, m.ones(12, 4), None, None, None, False, dropout, m.eye(4), None
    )
    return attended.round(decimals=4)


def _bce(m: Any, *args: Any, **named: Any) -> Any:
    return m.nn.functional.binary_cross_entropy_with_logits(*args, **named)


def _nans(m: Any) -> Any:
    return m.tensor([[m.nan, 1.0], [2.0, m.nan], [3.0, m.nan]])


def _i(m: Any, *shape: int) -> Any:
    return m.full(shape, 1 + 2j)


# Doubles computed from a float32 logarithm, whose last bit depends on the vector instructions that PyTorch finds.
COMPUTED_IN_FLOAT32 = {"logits of floats, targets of doubles"}
FLOAT32_ULPS = 4 * torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    outcomes: list[Any] = []
    for room in (torch, flambeau):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcomes.append(CALLS[name](room))
            except Exception as error:
                outcomes.append(error)
    want, found = outcomes
    if isinstance(want, Exception):
        assert type(found).__name__.lstrip("_") == type(want).__name__.lstrip("_"), (found, want)
        said = re.sub(
            r" \(position \d\)", "", str(want)
        )  # PyTorch's own calls pass some keywords by position
        assert "received an invalid" in said or said == re.sub(r" \(position \d\)", "", str(found))
    else:
        same(found, want, FLOAT32_ULPS if name in COMPUTED_IN_FLOAT32 else 4)


@pytest.mark.parametrize("bounds", [(1 << 40,), (-(1 << 40), 0)])
def test_random_bounds_that_a_half_cannot_hold(bounds: tuple[int, ...]) -> None:
    for room in (torch, flambeau):
        with pytest.raises(RuntimeError, match="is out of bounds for c10::Half"):
            room.ones(2).half().random_(*bounds)


@pytest.mark.parametrize("make", ["empty(1 << 63)", "zeros(2, 1 << 70)", "full((1 << 64,), 1)"])
def test_a_size_of_more_than_63_bits(make: str) -> None:
    told = []
    for room in (torch, flambeau):
        with pytest.raises(TypeError) as caught:
            eval(f"m.{make}", {"m": room})
        told.append(str(caught.value).split("\n")[0].strip('"'))  # PyTorch goes on with where its C++ was
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "make", ["empty(1 << 50)", "arange(1 << 52)", "linspace(0, 1, 1 << 52)", "ones(1 << 45).exp()"]
)
def test_more_memory_than_there_is(make: str) -> None:
    """A RuntimeError with the allocator's name and the bytes, by which programs know it."""
    told = []
    for room in (torch, flambeau):
        with pytest.raises(RuntimeError) as caught:
            eval(f"m.{make}", {"m": room})
        told.append(
            re.findall(
                r"DefaultCPUAllocator: can't allocate memory: you tried to allocate \d+ bytes\.",
                str(caught.value),
            )
        )
    assert told[0] == told[1] != []


def test_a_real_tensor_is_its_own_conjugate() -> None:
    for room in (torch, flambeau):
        x = room.ones(2)
        assert room.conj_physical(x).data_ptr() == x.data_ptr() == x.conj().data_ptr()


@pytest.mark.parametrize("exponent", [-(1 << 63), 1 - (1 << 63), (1 << 63) - 1])
def test_gradients_of_powers_with_exponents_of_63_bits(exponent):
    found = []
    for lib in (torch, flambeau):
        x = lib.tensor([1.0, 2.0, -1.0], requires_grad=True)
        found.append(lib.autograd.grad((x**exponent).sum(), x)[0].tolist())
    assert found[0] == found[1]
