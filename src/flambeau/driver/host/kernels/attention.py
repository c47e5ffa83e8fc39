"""Attention whose scores become weights in place."""

from __future__ import annotations

import numpy as np

from flambeau.driver.protocol import Body, Launch
from flambeau.ops.nn.attention import Array, factor_conversions
from flambeau.ops.nn.attention_gradients import masked_scores


def attention(launch: Launch) -> Body:
    """Return the body of scaled_dot_product_attention."""
    causal, scale, _ = launch.params
    shape = launch.outputs[0].shape
    convert, rounded = factor_conversions(launch)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        q, k, v = (convert(x) for x in inputs[:3])
        scores = np.matmul(q, k.swapaxes(-1, -2))
        scores *= q.dtype.type(scale)
        scores = masked_scores(scores, causal, inputs[3:])
        sums = outputs[1].reshape((*shape[:-1], 1))
        attended = np.matmul(rounded(_normalize(scores, sums)), v)
        np.copyto(outputs[0], attended.reshape(shape), casting="unsafe")

    return body


def _normalize(scores: Array, sums: Array) -> Array:
    """Replace scores by their softmax along the last axis, in place. A row of only -inf becomes zeros.

    Args:
        scores: (..., L, S).
        sums: (..., L, 1), receives the logarithm of each row's sum of exponentials.
    """
    if not scores.shape[-1]:
        sums.fill(-np.inf)
        return scores
    top = np.maximum.reduce(scores, axis=-1, keepdims=True)
    scores -= np.where(top == -np.inf, top.dtype.type(0), top)
    np.exp(scores, out=scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    total[total == 0] = 1
    scores /= total
    np.add(top, np.log(total), out=sums)
    return scores
