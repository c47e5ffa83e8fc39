"""torch.nn.functional: the functions of neural networks. Each file is one family."""

from __future__ import annotations

from types import FunctionType as _FunctionType
from typing import Any

from flambeau.core.public_names import explain_absent_names as _explain_absent_names
from flambeau.core.public_names import publish as _publish
from flambeau.nn.functional.activation import (
    celu,
    celu_,
    elu,
    elu_,
    gelu,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    hardtanh_,
    leaky_relu,
    leaky_relu_,
    log_softmax,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    relu_,
    rrelu,
    rrelu_,
    selu,
    selu_,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
    threshold_,
)
from flambeau.nn.functional.attention import multi_head_attention_forward, scaled_dot_product_attention
from flambeau.nn.functional.convolution import (
    bilinear,
    conv1d,
    conv2d,
    conv3d,
    conv_tbc,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    fold,
    linear,
    unfold,
)
from flambeau.nn.functional.distance import cosine_similarity, normalize, pairwise_distance, pdist
from flambeau.nn.functional.dropout import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
)
from flambeau.nn.functional.fractional import (
    fractional_max_pool2d,
    fractional_max_pool2d_with_indices,
    fractional_max_pool3d,
    fractional_max_pool3d_with_indices,
)
from flambeau.nn.functional.grouped_products import (
    ScalingType,
    SwizzleType,
    grouped_mm,
    scaled_grouped_mm,
    scaled_mm,
)
from flambeau.nn.functional.linear_cross_entropy import linear_cross_entropy
from flambeau.nn.functional.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cross_entropy,
    ctc_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    nll_loss,
    poisson_nll_loss,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from flambeau.nn.functional.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    rms_norm,
)
from flambeau.nn.functional.padding import (
    assert_int_or_pair,
    channel_shuffle,
    native_channel_shuffle,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
)
from flambeau.nn.functional.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool1d_with_indices,
    max_pool2d,
    max_pool2d_with_indices,
    max_pool3d,
    max_pool3d_with_indices,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from flambeau.nn.functional.sampling import (
    affine_grid,
    grid_sample,
    interpolate,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)
from flambeau.nn.functional.sparse import embedding, embedding_bag, one_hot
from flambeau.tensor.arguments.arg_aliases import accepting as _accepting
from flambeau.tensor.arguments.arg_errors import checking as _checking
from flambeau.tensor.signatures import compared_by_body as _compared_by_body
from flambeau.tensor.signatures import read_by_parser as _read_by_parser

globals().update(
    {
        _name: _accepting(_value, f"F.{_name}")
        if _value in _read_by_parser
        else _checking(_value, _name, _compared_by_body.get(_value, ()))
        for _name, _value in [*globals().items()]
        if _name[0] != "_" and isinstance(_value, _FunctionType)
    }
)
_publish(globals())
_threshold = globals()["threshold"]  # PyTorch's name of it in graphs of torch.fx
_explain_absent_names(globals(), "torch.nn.functional")
