"""Names of tensors that PyTorch's tests and libraries use: equal to PyTorch's CPU build, or refused with advice."""

from __future__ import annotations

from typing import Any

import pytest
from support import torch

import flambeau
from flambeau.core.errors import NotSupportedError

SAME: dict[str, Any] = {
    "_grad": lambda x: x._grad,
    "_grad of a product": lambda x: ((x * 2).sum().backward(), x._grad.tolist())[1],
    "_grad, set": lambda x: (setattr(x, "_grad", x.detach() + 1), x.grad.tolist())[1],
    "_grad_fn": lambda x: x._grad_fn is None and (x * 2)._grad_fn is not None,
    "_backward_hooks": lambda x: (x._backward_hooks, x.register_hook(print), len(x._backward_hooks))[::2],
    "_post_accumulate_grad_hooks": lambda x: (
        x._post_accumulate_grad_hooks,
        x.register_post_accumulate_grad_hook(print),
        len(x._post_accumulate_grad_hooks),
    )[::2],
    "_typed_storage": lambda x: x._typed_storage().tolist(),
    "_conj": lambda x: (x.detach() * 1j)._conj().tolist(),
    "_is_all_true": lambda x: ((x > 0)._is_all_true().item(), (x > 1)._is_all_true().item()),
    "_is_any_true": lambda x: ((x > 0)._is_any_true().item(), (x > 9)._is_any_true().item()),
    "const_data_ptr": lambda x: x.const_data_ptr() == x.data_ptr(),
    "__nonzero__": lambda x: x[0].__nonzero__(),
    "__long__": lambda x: x[1].__long__(),
    "__div__": lambda x: x.__div__(2).tolist(),
    "name": lambda x: x.name,
    "volatile": lambda x: x.volatile,
    "is_distributed": lambda x: x.is_distributed(),
    "_is_zerotensor": lambda x: x._is_zerotensor(),
    "_has_symbolic_sizes_strides": lambda x: x._has_symbolic_sizes_strides,
    "is_same_size": lambda x: (x.is_same_size(x + 1), x.is_same_size(x[:1])),
    "dequantize": lambda x: (x.double().dequantize().dtype.itemsize, x.dequantize().tolist()),
    "resize": lambda x: x.resize(3, 1).tolist(),
    "resize_as": lambda x: x.resize_as(x.detach().view(1, 3)).tolist(),
    "module_load": lambda x: (
        x.detach().module_load(x.detach() + 1).tolist(),
        x.module_load(x, assign=True).is_leaf,
    ),
    "_autocast_to_full_precision": lambda x: [
        x.half()._autocast_to_full_precision(True, on).dtype.itemsize for on in (True, False)
    ],
    "_autocast_to_reduced_precision": lambda x: [
        x._autocast_to_reduced_precision(True, on, x.half().dtype, x.half().dtype).dtype.itemsize
        for on in (True, False)
    ],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAME)
def test_a_name_of_tensors_is_pytorchs(name: str) -> None:
    results = [SAME[name](lib.tensor([1.0, 2.0, 3.0], requires_grad=True)) for lib in (flambeau, torch)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "name", ["eig", "symeig", "lstsq", "solve", "matrix_rank", "reinforce", "resize_of_leaf"]
)
def test_what_pytorch_removed_says_what_to_use(name: str) -> None:
    if name == "resize_of_leaf":
        with pytest.warns(UserWarning, match="non-inplace resize is deprecated"):
            flambeau.ones(3).resize(3)
        return
    run = getattr(flambeau, name, None) or getattr(flambeau.Tensor, name)
    other = getattr(torch, name, None) or getattr(torch.Tensor, name)
    with pytest.raises(RuntimeError) as theirs:
        other(torch.ones(3, 3), torch.ones(3, 3))
    with pytest.raises(RuntimeError) as ours:
        run(flambeau.ones(3, 3), flambeau.ones(3, 3))
    first = str(theirs.value).strip().split(".")[0]
    assert first in str(ours.value)


@pytest.mark.parametrize("name", ["int_repr", "q_scale", "qscheme", "to_mkldnn"])
def test_quantized_and_foreign_layouts_raise_with_advice(name: str) -> None:
    with pytest.raises(NotSupportedError, match=f"Tensor.{name}: .*Flambeau"):
        getattr(flambeau.ones(3), name)()


def test_load_state_dict_may_call_module_load() -> None:
    x = flambeau.zeros(3)
    loaded = x.module_load(flambeau.ones(3))
    assert loaded is not x
    assert loaded.tolist() == x.tolist() == [1, 1, 1]
