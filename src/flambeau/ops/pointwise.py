"""The pointwise family: one output element from the input elements at the same (broadcast) place."""

from __future__ import annotations

# (Skeleton: the operator room completes it.)
import numpy as np

from flambeau.core.dtype import DTYPES
from flambeau.core.layout import broadcast_shapes, expand_strides
from flambeau.core.meta import Meta
from flambeau.driver.api import Kernel
from flambeau.ops.op import Op, Signature, common_device, define


def _rule(operands, params):
    metas = operands
    shape = broadcast_shapes([m.shape for m in metas])
    out = Meta.contiguous_of(shape, metas[0].dtype, common_device(operands))
    return Signature((out,), tuple(m.with_(shape, expand_strides(m.shape, m.strides, shape)) for m in metas))


def _host(launch):
    def body(outputs, inputs):
        np.add(inputs[0], inputs[1], out=outputs[0])

    return body


add = define(Op("add", _rule, Kernel("add", _host), DTYPES, lambda make, dtype: []))
