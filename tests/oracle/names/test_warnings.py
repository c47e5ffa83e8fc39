"""What PyTorch warns of once in a program Flambeau warns of too, in the same words."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import torch

import flambeau


def _differentiated(m: Any) -> None:
    m.ones(2, requires_grad=True).exp().sum().backward(create_graph=True)


WARNED: dict[str, Callable[[Any], Any]] = {
    "cross of no dim": lambda m: m.cross(m.ones(2, 3), m.ones(2, 3)),
    "chain_matmul": lambda m: m.chain_matmul(m.ones(2, 3), m.ones(3, 2)),
    "lu": lambda m: m.lu(m.eye(2)),
    "lu_solve": lambda m: m.lu_solve(m.ones(2, 1), *m.linalg.lu_factor(m.eye(2))),
    "qr": lambda m: m.qr(m.eye(2)),
    "cholesky": lambda m: m.eye(2).cholesky(),
    "stft": lambda m: m.stft(m.ones(64), 16, return_complex=True),
    "istft": lambda m: m.istft(m.ones(9, 17, dtype=m.complex64), 16),
    "same": lambda m: m.nn.functional.conv1d(m.ones(1, 1, 3), m.ones(1, 1, 2), padding="same"),
    "a list of arrays": lambda m: m.tensor([np.ones(2), np.ones(2), np.ones(2)]),
    "a read-only array": lambda m: m.as_tensor(np.frombuffer(b"abcd", np.uint8)),
    "a read-only buffer": lambda m: m.frombuffer(b"abcd", dtype=m.uint8),
    "gradcheck": lambda m: m.autograd.gradcheck(
        lambda x: x * 2, (m.ones(1, requires_grad=True),), atol=1, raise_exception=False
    ),
    "a Function's instance": lambda m: m.autograd.Function(),
    "create_graph": _differentiated,
    "checkpoint": lambda m: m.utils.checkpoint.checkpoint(m.exp, m.ones(2, requires_grad=True)),
    "checkpoint_sequential": lambda m: m.utils.checkpoint.checkpoint_sequential(
        [m.exp, m.exp], 2, m.ones(2, requires_grad=True)
    ),
}


def told(lib: Any, program: Callable[[Any], Any]) -> list[tuple[str, str]]:
    """The categories and texts of what a program is warned of, without where PyTorch's own source says it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(lib)
    names = [
        (
            w.category.__name__,
            re.sub(
                r"( This type of warning will be suppressed for the rest of this program.)? \(Triggered internally.*",
                "",
                str(w.message),
            ),
        )
        for w in caught
    ]
    return [
        (kind, text.replace("flambeau", "torch").replace("solveand", "solve and")) for kind, text in names
    ]


@pytest.mark.parametrize("name", WARNED)
def test_a_program_is_warned_as_in_pytorch(name: str) -> None:
    torch.set_warn_always(True)  # else only the first time in a process
    try:
        theirs = list(dict.fromkeys(told(torch, WARNED[name])))
    finally:
        torch.set_warn_always(False)
    assert len(theirs) == 1
    assert told(flambeau, WARNED[name]) == theirs


QUIET: dict[str, Callable[[Any], Any]] = {
    "cross of dim": lambda m: m.cross(m.ones(2, 3), m.ones(2, 3), dim=1),
    "multi_dot": lambda m: m.linalg.multi_dot([m.ones(2, 3), m.ones(3, 2)]),
    "linalg.qr": lambda m: m.linalg.qr(m.eye(2)),
    "stft with a window": lambda m: m.stft(m.ones(64), 16, window=m.ones(16), return_complex=True),
    "a covariance": lambda m: m.distributions.MultivariateNormal(m.zeros(2), m.eye(2)),
    "a precision": lambda m: m.distributions.MultivariateNormal(m.zeros(2), precision_matrix=m.eye(2)),
}


@pytest.mark.parametrize("name", QUIET)
def test_the_newer_way_is_not_warned_of(name: str) -> None:
    assert told(flambeau, QUIET[name]) == told(torch, QUIET[name]) == []
