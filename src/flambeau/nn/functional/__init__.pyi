# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.nn.functional."""


from flambeau.tensor.tensor import Tensor

from builtins import bool as _bool, complex as _complex, float as _float, int as _int, str as _str
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from flambeau.core.device import device as _device
from flambeau.core.dtype import dtype as _dtype
from flambeau.core.handle import RemovableHandle as _RemovableHandle
from flambeau.core.size import Size as _Size
from flambeau.core.typeinfo import finfo as _finfo, iinfo as _iinfo
from flambeau.runtime.generator import Generator as _Generator
from flambeau.runtime.streams.event import Event as _Event
from flambeau.tape.autograd_node import Node as _Node
from flambeau.tensor.arguments import return_types as _return_types
from flambeau.tensor.arguments.typing import layout as _layout, memory_format as _memory_format
from flambeau.tensor.storages import TypedStorage as _TypedStorage, UntypedStorage as _UntypedStorage

_Number: TypeAlias = _bool | _int | _float | _complex
_Ints: TypeAlias = Sequence[_int]
_IntOrInts: TypeAlias = _int | Sequence[_int]
_Tensors: TypeAlias = Sequence[Tensor]
_Device: TypeAlias = _str | _int | _device | None

from flambeau.nn.functional.grouped_products import ScalingType as ScalingType
from flambeau.nn.functional.grouped_products import SwizzleType as SwizzleType
from flambeau.nn.functional import activation as activation
from flambeau.nn.functional.sampling import affine_grid as affine_grid
from flambeau.nn.functional.dropout import alpha_dropout as alpha_dropout
from flambeau.nn.functional.padding import assert_int_or_pair as assert_int_or_pair
from flambeau.nn.functional import attention as attention
from flambeau.nn.functional import attention_choice as attention_choice
from flambeau.nn.functional.normalization import batch_norm as batch_norm
from flambeau.nn.functional.convolution import bilinear as bilinear
from flambeau.nn.functional.loss import binary_cross_entropy as binary_cross_entropy
from flambeau.nn.functional.loss import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from flambeau.nn.functional.activation import celu as celu
from flambeau.nn.functional.padding import channel_shuffle as channel_shuffle
from flambeau.nn.functional.convolution import conv_tbc as conv_tbc
from flambeau.nn.functional import convolution as convolution
from flambeau.nn.functional.loss import cosine_embedding_loss as cosine_embedding_loss
from flambeau.nn.functional.distance import cosine_similarity as cosine_similarity
from flambeau.nn.functional.loss import cross_entropy as cross_entropy
from flambeau.nn.functional.loss import ctc_loss as ctc_loss
from flambeau.nn.functional import distance as distance
from flambeau.nn.functional.dropout import dropout as dropout
from flambeau.nn.functional.dropout import dropout1d as dropout1d
from flambeau.nn.functional.dropout import dropout2d as dropout2d
from flambeau.nn.functional.dropout import dropout3d as dropout3d
from flambeau.nn.functional.activation import elu as elu
from flambeau.nn.functional.activation import elu_ as elu_
from flambeau.nn.functional.sparse import embedding as embedding
from flambeau.nn.functional.sparse import embedding_bag as embedding_bag
from flambeau.nn.functional.dropout import feature_alpha_dropout as feature_alpha_dropout
from flambeau.nn.functional.convolution import fold as fold
from flambeau.nn.functional import fractional as fractional
from flambeau.nn.functional.fractional import fractional_max_pool2d as fractional_max_pool2d
from flambeau.nn.functional.fractional import fractional_max_pool2d_with_indices as fractional_max_pool2d_with_indices
from flambeau.nn.functional.fractional import fractional_max_pool3d as fractional_max_pool3d
from flambeau.nn.functional.fractional import fractional_max_pool3d_with_indices as fractional_max_pool3d_with_indices
from flambeau.nn.functional.loss import gaussian_nll_loss as gaussian_nll_loss
from flambeau.nn.functional.activation import gelu as gelu
from flambeau.nn.functional.activation import glu as glu
from flambeau.nn.functional.sampling import grid_sample as grid_sample
from flambeau.nn.functional.normalization import group_norm as group_norm
from flambeau.nn.functional.grouped_products import grouped_mm as grouped_mm
from flambeau.nn.functional import grouped_products as grouped_products
from flambeau.nn.functional.activation import gumbel_softmax as gumbel_softmax
from flambeau.nn.functional.activation import hardshrink as hardshrink
from flambeau.nn.functional.activation import hardsigmoid as hardsigmoid
from flambeau.nn.functional.activation import hardswish as hardswish
from flambeau.nn.functional.activation import hardtanh as hardtanh
from flambeau.nn.functional.activation import hardtanh_ as hardtanh_
from flambeau.nn.functional.loss import hinge_embedding_loss as hinge_embedding_loss
from flambeau.nn.functional.loss import huber_loss as huber_loss
from flambeau.nn.functional.normalization import instance_norm as instance_norm
from flambeau.nn.functional.sampling import interpolate as interpolate
from flambeau.nn.functional.loss import kl_div as kl_div
from flambeau.nn.functional.loss import l1_loss as l1_loss
from flambeau.nn.functional.normalization import layer_norm as layer_norm
from flambeau.nn.functional.activation import leaky_relu as leaky_relu
from flambeau.nn.functional.convolution import linear as linear
from flambeau.nn.functional.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
from flambeau.nn.functional.normalization import local_response_norm as local_response_norm
from flambeau.nn.functional.activation import log_softmax as log_softmax
from flambeau.nn.functional.activation import logsigmoid as logsigmoid
from flambeau.nn.functional import loss as loss
from flambeau.nn.functional.loss import margin_ranking_loss as margin_ranking_loss
from flambeau.nn.functional.activation import mish as mish
from flambeau.nn.functional.loss import mse_loss as mse_loss
from flambeau.nn.functional.attention import multi_head_attention_forward as multi_head_attention_forward
from flambeau.nn.functional.loss import multi_margin_loss as multi_margin_loss
from flambeau.nn.functional.loss import multilabel_margin_loss as multilabel_margin_loss
from flambeau.nn.functional.loss import multilabel_soft_margin_loss as multilabel_soft_margin_loss
from flambeau.nn.functional import namespace as namespace
from flambeau.nn.functional.padding import native_channel_shuffle as native_channel_shuffle
from flambeau.nn.functional.loss import nll_loss as nll_loss
from flambeau.nn.functional import normalization as normalization
from flambeau.nn.functional.distance import normalize as normalize
from flambeau.nn.functional.sparse import one_hot as one_hot
from flambeau.nn.functional.padding import pad as pad
from flambeau.nn.functional import padding as padding
from flambeau.nn.functional.distance import pairwise_distance as pairwise_distance
from flambeau.nn.functional.distance import pdist as pdist
from flambeau.nn.functional.padding import pixel_shuffle as pixel_shuffle
from flambeau.nn.functional.padding import pixel_unshuffle as pixel_unshuffle
from flambeau.nn.functional.loss import poisson_nll_loss as poisson_nll_loss
from flambeau.nn.functional import pooling as pooling
from flambeau.nn.functional.activation import prelu as prelu
from flambeau.nn.functional import recurrence as recurrence
from flambeau.nn.functional import recurrent as recurrent
from flambeau.nn.functional import recurrent_network as recurrent_network
from flambeau.nn.functional.activation import relu as relu
from flambeau.nn.functional.activation import relu6 as relu6
from flambeau.nn.functional.normalization import rms_norm as rms_norm
from flambeau.nn.functional.activation import rrelu as rrelu
from flambeau.nn.functional import sampling as sampling
from flambeau.nn.functional.attention import scaled_dot_product_attention as scaled_dot_product_attention
from flambeau.nn.functional.grouped_products import scaled_grouped_mm as scaled_grouped_mm
from flambeau.nn.functional.grouped_products import scaled_mm as scaled_mm
from flambeau.nn.functional.activation import selu as selu
from flambeau.nn.functional.activation import sigmoid as sigmoid
from flambeau.nn.functional.activation import silu as silu
from flambeau.nn.functional.loss import smooth_l1_loss as smooth_l1_loss
from flambeau.nn.functional.loss import soft_margin_loss as soft_margin_loss
from flambeau.nn.functional.activation import softmax as softmax
from flambeau.nn.functional.activation import softmin as softmin
from flambeau.nn.functional.activation import softplus as softplus
from flambeau.nn.functional.activation import softshrink as softshrink
from flambeau.nn.functional.activation import softsign as softsign
from flambeau.nn.functional import sparse as sparse
from flambeau.nn.functional.activation import tanh as tanh
from flambeau.nn.functional.activation import tanhshrink as tanhshrink
from flambeau.nn.functional.activation import threshold as threshold
from flambeau.nn.functional.loss import triplet_margin_loss as triplet_margin_loss
from flambeau.nn.functional.loss import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from flambeau.nn.functional.convolution import unfold as unfold
from flambeau.nn.functional.sampling import upsample as upsample
from flambeau.nn.functional.sampling import upsample_bilinear as upsample_bilinear
from flambeau.nn.functional.sampling import upsample_nearest as upsample_nearest

def adaptive_avg_pool1d(input: Tensor, output_size: _IntOrInts) -> Tensor: ...
def adaptive_avg_pool2d(input: Tensor, output_size: _IntOrInts) -> Tensor: ...
def adaptive_avg_pool3d(input: Tensor, output_size: _IntOrInts) -> Tensor: ...
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: _bool = ...) -> Any: ...
def adaptive_max_pool1d_with_indices(input: Tensor, output_size: Any, return_indices: _bool = ...) -> Any: ...
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: _bool = ...) -> Any: ...
def adaptive_max_pool2d_with_indices(input: Tensor, output_size: Any, return_indices: _bool = ...) -> Any: ...
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: _bool = ...) -> Any: ...
def adaptive_max_pool3d_with_indices(input: Tensor, output_size: Any, return_indices: _bool = ...) -> Any: ...
def avg_pool1d(input: Tensor, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., padding: _IntOrInts = ..., ceil_mode: _bool = ..., count_include_pad: _bool = ..., divisor_override: _int | None = ...) -> Tensor: ...
def avg_pool2d(input: Tensor, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., padding: _IntOrInts = ..., ceil_mode: _bool = ..., count_include_pad: _bool = ..., divisor_override: _int | None = ...) -> Tensor: ...
def avg_pool3d(input: Tensor, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., padding: _IntOrInts = ..., ceil_mode: _bool = ..., count_include_pad: _bool = ..., divisor_override: _int | None = ...) -> Tensor: ...
def celu_(input: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...
def conv1d(input: Tensor, weight: Tensor, bias: Tensor | None = ..., stride: Any = ..., padding: Any = ..., dilation: Any = ..., groups: _int = ...) -> Tensor: ...
def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = ..., stride: Any = ..., padding: Any = ..., dilation: Any = ..., groups: _int = ...) -> Tensor: ...
def conv3d(input: Tensor, weight: Tensor, bias: Tensor | None = ..., stride: Any = ..., padding: Any = ..., dilation: Any = ..., groups: _int = ...) -> Tensor: ...
def conv_transpose1d(input: Tensor, weight: Tensor, bias: Tensor | None = ..., stride: _IntOrInts = ..., padding: _IntOrInts = ..., output_padding: _IntOrInts = ..., groups: _int = ..., dilation: _IntOrInts = ...) -> Tensor: ...
def conv_transpose2d(input: Tensor, weight: Tensor, bias: Tensor | None = ..., stride: _IntOrInts = ..., padding: _IntOrInts = ..., output_padding: _IntOrInts = ..., groups: _int = ..., dilation: _IntOrInts = ...) -> Tensor: ...
def conv_transpose3d(input: Tensor, weight: Tensor, bias: Tensor | None = ..., stride: _IntOrInts = ..., padding: _IntOrInts = ..., output_padding: _IntOrInts = ..., groups: _int = ..., dilation: _IntOrInts = ...) -> Tensor: ...
def leaky_relu_(input: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...
def lp_pool1d(input: Tensor, norm_type: _float, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., ceil_mode: _bool = ...) -> Tensor: ...
def lp_pool2d(input: Tensor, norm_type: _float, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., ceil_mode: _bool = ...) -> Tensor: ...
def lp_pool3d(input: Tensor, norm_type: _float, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., ceil_mode: _bool = ...) -> Tensor: ...
def max_pool1d(input: Tensor, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., padding: _IntOrInts = ..., dilation: _IntOrInts = ..., ceil_mode: _bool = ..., return_indices: _bool = ...) -> Any: ...
def max_pool1d_with_indices(*args: Any, return_indices: _bool = ..., **kwargs: Any) -> Any: ...
def max_pool2d(input: Tensor, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., padding: _IntOrInts = ..., dilation: _IntOrInts = ..., ceil_mode: _bool = ..., return_indices: _bool = ...) -> Any: ...
def max_pool2d_with_indices(*args: Any, return_indices: _bool = ..., **kwargs: Any) -> Any: ...
def max_pool3d(input: Tensor, kernel_size: _IntOrInts, stride: _IntOrInts | None = ..., padding: _IntOrInts = ..., dilation: _IntOrInts = ..., ceil_mode: _bool = ..., return_indices: _bool = ...) -> Any: ...
def max_pool3d_with_indices(*args: Any, return_indices: _bool = ..., **kwargs: Any) -> Any: ...
def max_unpool1d(input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = ..., padding: Any = ..., output_size: Any = ...) -> Tensor: ...
def max_unpool2d(input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = ..., padding: Any = ..., output_size: Any = ...) -> Tensor: ...
def max_unpool3d(input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = ..., padding: Any = ..., output_size: Any = ...) -> Tensor: ...
def relu_(input: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...
def rrelu_(input: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...
def selu_(input: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...
def threshold_(input: Tensor, *args: Any, **kwargs: Any) -> Tensor: ...
