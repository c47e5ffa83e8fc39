"""`torch.testing.assert_close` beside PyTorch's: what it takes and refuses, and its messages, to the letter."""

from __future__ import annotations

from typing import Any

import pytest
import torch as oracle

import flambeau

NAN, INF = float("nan"), float("inf")
CASES = """
t([1., 2., 3.]), t([1., 2.5, 3.])
t([1, 2, 3]), t([1, 5, 9])
t([1, 2], dtype=torch.uint8), t([3, 2], dtype=torch.uint8)
t([True, False]), t([True, True])
t([1 + 2j]), t([1 + 3j])
t([[1., 2.], [3., 4.]]), t([[1., 2.], [3., 9.]]), rtol=.1, atol=.1
t([1.], dtype=torch.bfloat16), t([1.5], dtype=torch.bfloat16)
t([1., 2.], requires_grad=True), t([1., 2.5])
t([0., 1.]), t([0.1, 0.])
t([INF]), t([1.])
t([INF, -INF]), t([INF, -INF])
t([NAN]), t([NAN])
t([NAN]), t([NAN]), equal_nan=True
t([]), t([])
t([1.]), t([1.1]), rtol=0., atol=0.
t([1.]), t([1.1]), rtol=.2
t([1.]), t([1.1]), atol=.2
t([1.]), t([1., 2.])
t([1.]), t([1.], dtype=torch.float64)
t([1.]), t([1.], dtype=torch.float64), check_dtype=False
t([1]), t([1.5]), check_dtype=False
torch.ones(2, 3).t(), torch.ones(3, 2)
torch.ones(2, 3).t(), torch.ones(3, 2), check_stride=True
t(1.), t(2.)
t(5), t(7)
1.0, 2.0
1.0, 2.0, rtol=0., atol=0.
1.0, 1.0000000001
1, 2
0.0, 1
1.0, 0.0
1.0, 1
1.0, 1, check_dtype=False
1 + 2j, 1 + 3j
NAN, NAN
NAN, NAN, equal_nan=True
INF, INF
INF, 1.0
1.0, INF
t([1e6, 1.]), t([1e6 + 1, 1.5])
True, False
True, True
None, None
None, 1
"a", "a"
t([1.]), 1.0
1.0, t([1.])
[1], [1, 2]
(1, 2), [1, 2]
[t([1.]), t([2.])], [t([1.]), t([3.])]
{"a": [t([1.])]}, {"a": [t([2.])]}
[{"a": t([1.])}], [{"a": t([0.])}]
{"a": 1, "b": 2}, {"b": 3, "c": 1}
t([1.]), t([2.]), msg="mine"
t([1.]), t([2.]), msg=lambda text: "so " + text
[t([1.])], [t([2.])], msg=lambda text: "so " + text
""".strip().splitlines()


def said(torch: Any, case: str) -> str:
    names = {"torch": torch, "t": torch.tensor, "NAN": NAN, "INF": INF}
    try:
        eval(f"torch.testing.assert_close({case})", names)
    except (AssertionError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}".replace("flambeau.Tensor", "torch.Tensor")
    return "close"


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_pytorch_says(case: str) -> None:
    assert said(flambeau, case) == said(oracle, case)


def test_tensors_of_devices() -> None:
    with flambeau.virtual(2, races="error"):
        a = flambeau.ones(4, device="cuda")
        flambeau.testing.assert_close(a, flambeau.ones(4, device="cuda"))
        flambeau.testing.assert_close(a, flambeau.ones(4), check_device=False)
        with pytest.raises(AssertionError, match="attribute 'device' do not match: cuda:0 != cuda:1"):
            flambeau.testing.assert_close(a, a.to("cuda:1"))
        with pytest.raises(AssertionError, match=r"difference: 2.0 at index \(3,\)"):
            b = a.clone()
            b[3] = 3
            flambeau.testing.assert_close(b, a)
