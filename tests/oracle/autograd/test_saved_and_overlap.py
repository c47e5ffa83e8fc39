"""What nodes say that they saved, and tensors that are written from their own memory: beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flambeau

torch = pytest.importorskip("torch")

SAVED: dict[str, Callable[[Any], Any]] = {
    "mul": lambda x: x * (x + 1),
    "mul of a constant": lambda x: x * x.detach(),
    "div": lambda x: x / (x + 2),
    "pow": lambda x: x**3.0,
    "exp": lambda x: x.exp(),
    "sin": lambda x: x.sin(),
    "tanh": lambda x: x.tanh(),
    "add": lambda x: x + 1,
    "sigmoid": lambda x: x.sigmoid(),
}
# And, of a matrix:
PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "mm": lambda x: x.mm(x + 1),
    "mv": lambda x: x.mv(x[0]),
    "addmm": lambda x: (x + 1).addmm(x, x + 2),
    "bmm": lambda x: x.view(1, 2, 2).bmm(x.view(1, 2, 2)),
}
NAMES = [
    "_saved_self",
    "_saved_other",
    "_saved_exponent",
    "_saved_result",
    "_saved_mat1",
    "_saved_mat2",
    "_saved_vec",
]


def said(node: Any, name: str) -> Any:
    try:
        found = getattr(node, name)
    except AttributeError as error:
        return str(error)
    except RuntimeError as error:
        return str(error)[:60]
    return found.detach().numpy().tolist() if hasattr(found, "detach") else found


@pytest.mark.parametrize("program", [*SAVED, *PRODUCTS])
@pytest.mark.parametrize("walked", [False, True], ids=["kept", "freed"])
def test_what_a_node_saved(program: str, walked: bool) -> None:
    answers = []
    for lib in (flambeau, torch):
        square = program in PRODUCTS
        x = lib.tensor([[0.25, 0.5], [1.0, 2.0]] if square else [0.25, 0.5, 1.0], requires_grad=True)
        y = (PRODUCTS if square else SAVED)[program](x)
        if walked:
            y.sum().backward()
        answers.append({name: said(y.grad_fn, name) for name in NAMES})
    ours, theirs = answers
    for name in NAMES:
        if isinstance(theirs[name], list):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6)
        else:
            assert ours[name] == theirs[name] or (walked and theirs[name] == 3.0), (
                name
            )  # numbers go with the rest


def test_what_was_saved_has_its_history() -> None:
    x = flambeau.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    z = y * y
    assert z.grad_fn._saved_self.grad_fn is y.grad_fn
    e = y.exp()
    assert e.grad_fn._saved_result.grad_fn is e.grad_fn


CHANGED = """
x.topk(2)[0] x.sort()[0] x.kthvalue(2)[0] x.mode()[0] x.median(1)[0] x.nanmedian(1)[0] x.max(1)[0] x.min(1)[0]
x.cummax(1)[0] x.cummin(1)[0] x.amax(1) x.aminmax(dim=1)[0] torch.std_mean(x,1)[0] torch.std_mean(x,1)[1]
torch.var_mean(x,1)[0] torch.slogdet(x)[1] x.erfinv() x.clone().erfinv_() x.scatter(1,i,x+1) x.scatter_add(1,i,x+1)
x.scatter_reduce(1,i,x+1,'sum') x.scatter_reduce(1,i,x+1,'amax') x.index_add(0,i[0],x+1) x.gather(1,i) x.exp() x.sqrt()
x.softmax(1) x.log_softmax(1) x.cumsum(1) x.cumprod(1) x.sigmoid() x.relu() x.tanh() x*(x+1) x/(x+1) x@x x.std(1)
x.norm(dim=1) x.logsumexp(1) F.layer_norm(x,(2,)) F.silu(x) F.gelu(x) F.elu(x) F.leaky_relu(x) F.mse_loss(x,x+1)
F.dropout(x,.5) x.pow(2) x.clamp(.1,.5) torch.maximum(x,x+1) torch.where(x>.3,x,x+1) torch.linalg.inv(x) x.sum(1)
"""


@pytest.mark.parametrize("name", CHANGED.split())
def test_a_result_may_be_changed_where_pytorch_does_not_need_it(name: str) -> None:
    answers = []
    for lib in (flambeau, torch):
        given = lib.tensor([[0.25, 0.5], [0.75, 0.125]], requires_grad=True)
        lib.manual_seed(0)
        y = eval(
            name, {"torch": lib, "F": lib.nn.functional, "x": given * 1, "i": lib.tensor([[0, 1], [1, 0]])}
        )
        try:
            y.mul_(y.detach().sum())
            y.sum().backward()
            answers.append(given.grad.numpy())
        except RuntimeError as error:
            answers.append(str(error))
    ours, theirs = answers
    if isinstance(theirs, str):
        assert ours == theirs
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_scatter_that_reduces_has_no_derivative() -> None:
    for lib in (flambeau, torch):
        x = lib.ones(3, requires_grad=True)
        y = x.scatter(0, lib.tensor([1]), 2.0, reduce="multiply")
        assert y.grad_fn.name() == "torch::autograd::NotImplemented"
        with pytest.raises(RuntimeError, match="derivative for aten::scatter is not implemented"):
            y.sum().backward()


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "x[[0, 1]] = x": lambda m, x: x.__setitem__([3, 2, 1, 0], x),
    "index_put_": lambda m, x: x.index_put_((m.tensor([1, 0, 2, 3]),), x),
    "index_put_, added": lambda m, x: x.index_put_((m.tensor([1, 0, 2, 3]),), x, True),
    "index_put_ of an element": lambda m, x: x.index_put_((m.tensor([0, 1]),), x[0]),
    "index_put_ of a part": lambda m, x: x[:2].index_put_((m.tensor([0, 1]),), x[1:3]),
    "index_put_ of another part": lambda m, x: x[:2].index_put_((m.tensor([1, 0]),), x[2:4]),
    "index_put_ of what lies between": lambda m, x: x[::2].index_put_((m.tensor([1, 0]),), x[1::2]),
    "index_copy_": lambda m, x: x.index_copy_(0, m.tensor([0, 1]), x[:2]),
    "index_add_": lambda m, x: x.index_add_(0, m.tensor([0, 1]), x[2:]),
    "index_add_ of itself": lambda m, x: x.index_add_(0, m.tensor([3, 2, 1, 0]), x),
    "scatter_": lambda m, x: x.scatter_(0, m.tensor([0, 1]), x),
    "scatter_add_": lambda m, x: x.scatter_add_(0, m.tensor([0, 1]), x),
    "scatter_reduce_": lambda m, x: x.scatter_reduce_(0, m.tensor([0, 1]), x, reduce="sum"),
    "index_reduce_": lambda m, x: x.index_reduce_(0, m.tensor([0, 1, 2, 3]), x, "amax"),
    "masked_scatter_": lambda m, x: x.masked_scatter_(m.tensor([True] * 4), x),
    "add_ of what lies between": lambda m, x: x[::2].add_(x[1::2]),
    "add_ of the next column": lambda m, x: x.view(2, 2)[:, 0].add_(x.view(2, 2)[:, 1]),
    "add_ of the next": lambda m, x: x[1:].add_(x[:-1]),
    "add_ of the transposed": lambda m, x: x.view(2, 2).add_(x.view(2, 2).t()),
    "add_ of itself": lambda m, x: x.add_(x),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_tensor_written_from_its_own_memory(write: str) -> None:
    answers: list[Any] = []
    for lib in (flambeau, torch):
        x = lib.tensor([1.0, 2.0, 4.0, 8.0])
        try:
            WRITES[write](lib, x)
            answers.append(x.tolist())
        except RuntimeError as error:
            answers.append(str(error))
            assert x.tolist() == [1, 2, 4, 8]
    assert answers[0] == answers[1]
