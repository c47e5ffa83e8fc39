"""`GraphExecGroup` of torch.utils.checkpoint, next to PyTorch's."""

import pytest

import flambeau
import flambeau.utils.checkpoint  # the oracle's is imported by PyTorch

oracle = pytest.importorskip("torch")


@pytest.mark.parametrize("t", [flambeau, oracle], ids=["flambeau", "pytorch"])
def test_several_backwards_of_a_group_recompute_once(t):
    checkpoint = t.utils.checkpoint
    calls = []

    def part(x):
        calls.append(1)
        return x.sin().exp(), x.cos().exp()

    x = t.tensor([0.5, 1.5], requires_grad=True)
    first, second = checkpoint.checkpoint(part, x, use_reentrant=False, early_stop=False)
    with checkpoint.GraphExecGroup() as group:
        assert checkpoint.GraphExecGroup._get_current_group() is group
        first.sum().backward()
        second.sum().backward()
        with pytest.raises(RuntimeError, match="cannot be nested"), checkpoint.GraphExecGroup():
            pass
    assert checkpoint.GraphExecGroup._get_current_group() is None
    assert len(calls) == 2
    want = [0.5, 1.5]
    y = t.tensor(want, requires_grad=True)
    (y.sin().exp().sum() + y.cos().exp().sum()).backward()
    assert t.allclose(x.grad, y.grad)
