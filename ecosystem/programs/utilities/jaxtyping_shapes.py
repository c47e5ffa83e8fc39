"""Checks shapes and dtypes of tensors at run time from their annotations."""

import torch
from jaxtyping import Float, Int, Shaped, jaxtyped
from torch import Tensor

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

matrix = torch.randn(3, 4, device=device)
assert isinstance(matrix, Float[Tensor, "rows columns"])
assert isinstance(matrix, Float[Tensor, "3 4"]) and not isinstance(matrix, Float[Tensor, "3 5"])
assert not isinstance(matrix, Int[Tensor, "3 4"]) and isinstance(matrix.bfloat16(), Float[Tensor, "..."])
assert isinstance(torch.nn.Parameter(matrix), Shaped[Tensor, "*any"])
assert isinstance(torch.arange(3, device=device), Int[Tensor, " n"])

with jaxtyped("context"):
    assert isinstance(matrix, Float[Tensor, "n m"])
    assert isinstance(matrix.T, Float[Tensor, "m n"])
    assert not isinstance(matrix, Float[Tensor, "m n"])


def check(function):
    hints = dict(function.__annotations__)

    def call(*values):
        with jaxtyped("context"):
            for value, (name, hint) in zip(values, hints.items()):
                if not isinstance(value, hint):
                    raise TypeError(f"{name} has shape {tuple(value.shape)}, not {hint.dim_str}")
            result = function(*values)
            if not isinstance(result, hints["return"]):
                raise TypeError("wrong result")
            return result

    return call


@check
def attend(query: Float[Tensor, "n d"], key: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    return (query @ key.T / query.shape[1] ** 0.5).softmax(-1)


weights = attend(matrix, torch.randn(5, 4, device=device))
assert torch.allclose(weights.sum(-1), torch.ones(3, device=device))
try:
    attend(matrix, torch.randn(5, 6, device=device))
except TypeError as error:
    message = str(error)
else:
    raise AssertionError("a wrong shape was accepted")
assert message == "key has shape (5, 6), not m d"
print(f"jaxtyping: {message}")
