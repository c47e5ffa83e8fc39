"""Small public names of torch.nn.functional and torch.fft, next to PyTorch's."""

import pytest

import flambeau
import flambeau.fft

oracle = pytest.importorskip("torch")


@pytest.mark.parametrize("t", [flambeau, oracle], ids=["flambeau", "pytorch"])
def test_assert_int_or_pair(t):
    check = t.nn.functional.assert_int_or_pair
    for good in (3, [1, 2], (1, 2)):
        assert check(good, "kernel_size", "{} must be an int or a pair") is None
    with pytest.raises(AssertionError, match=r"^kernel_size must be an int or a pair$"):
        check([1, 2, 3], "kernel_size", "{} must be an int or a pair")


def test_native_channel_shuffle_is_pytorchs():
    values = list(range(24))
    results = [
        t.nn.functional.native_channel_shuffle(t.tensor(values).reshape(1, 6, 4), 3)
        for t in (flambeau, oracle)
    ]
    assert results[0].tolist() == results[1].tolist()
    for t in (flambeau, oracle):
        with pytest.raises(RuntimeError):
            t.nn.functional.native_channel_shuffle(t.zeros(1, 6, 4), 4)


def test_fft_names_the_class_of_tensors():
    assert flambeau.fft.Tensor is flambeau.Tensor and flambeau.Tensor.__module__ != "flambeau.fft"
