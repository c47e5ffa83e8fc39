"""The functions of `Kernel.workspace`: memory that PyTorch's kernel of an operator takes while it runs.

bench/accuracy compares peaks with those of PyTorch 2.11 on an H100.
"""

from __future__ import annotations

import math

from flambeau.driver.api import Launch

Sizes = tuple[int, ...]
"""Bytes of each block."""


def one_number(launch: Launch) -> Sizes:
    """Return the bytes of one number, such as the sum of the weights of a mean."""
    return (4,)


def moments_of_rows(launch: Launch) -> Sizes:
    """Return the bytes of each row's mean and deviation, for norms with the params (number of dimensions, ...)."""
    shape = launch.outputs[0].shape
    return (4 * math.prod(shape[: len(shape) - launch.params[0]]),) * 2


def moments_of_groups(launch: Launch) -> Sizes:
    """Return the bytes of each group's mean and deviation, for norms with the params (number of groups, ...)."""
    meta = launch.outputs[0]
    return (meta.itemsize * meta.shape[0] * launch.params[0],) * 2


def one_list(launch: Launch) -> Sizes:
    """Return the bytes of one more list of tensors like the first, with the params (number of tensors, ...)."""
    return tuple([meta.nbytes for meta in launch.outputs[: launch.params[0]]])
