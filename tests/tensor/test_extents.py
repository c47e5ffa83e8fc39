"""Views over storages from sizes, strides and offsets that others hand over: none leaves its storage."""

from __future__ import annotations

import io
import pickle
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.data.channel import tensor_of
from flambeau.multiprocessing.reductions import rebuild_tensor
from flambeau.tensor.arguments.extents import require_within
from flambeau.tensor.exchange import pickling

NOT_PLAIN: list[Any] = [
    torch.tensor(1, dtype=torch.uint8), torch.tensor([1]), True, 1.0, 0.5, float("nan"), float("inf"), np.int64(1), np.bool_(True),
    "1", b"1", None, (1,), [1], 1j, object(),
]  # fmt: skip
BAD_NUMBERS = [-1, -(1 << 63), 1 << 63, 1 << 64, 10**400]


class Call:
    """An object that a pickle rebuilds by calling a function."""

    def __init__(self, define: Any, *arguments: Any) -> None:
        self.reduced = define, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def layouts(value: Any) -> list[tuple[Any, Any, Any]]:
    """(offset, size, stride) with a value in each place."""
    return [
        (value, (1,), (1,)),
        (0, (value,), (1,)),
        (0, (1,), (value,)),
        (0, (2, value), (1, 1)),
        (0, (1, 1), (1, value)),
    ]


def loaded(obj: Any) -> Any:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return torch.load(file)


def rebuilt(offset: Any, size: Any, stride: Any) -> list[Callable[[], Any]]:
    """What pickles rebuild tensors with."""
    storage, kind = torch.arange(4).storage(), torch.int64
    return [
        lambda: pickling.rebuild(storage, offset, size, stride, False, OrderedDict()),
        lambda: pickling.rebuild_as(storage.untyped(), offset, size, stride, False, OrderedDict(), kind),
        lambda: rebuild_tensor(torch.Tensor, storage, (offset, size, stride, False)),
    ]


@pytest.mark.parametrize("value", NOT_PLAIN, ids=lambda value: type(value).__name__)
def test_pickled_layouts_consist_of_plain_ints(value: Any) -> None:
    for layout in layouts(value):
        for call in rebuilt(*layout):
            with pytest.raises(TypeError, match="must consist of plain ints"):
                call()


@pytest.mark.parametrize(
    "value",
    [v for v in NOT_PLAIN if type(v) is not object and not isinstance(v, np.generic)],
    ids=lambda value: type(value).__name__,
)
def test_checkpoint_layouts_consist_of_plain_ints(value: Any) -> None:
    storage = torch.arange(4).storage()
    for layout in layouts(value):
        for define in (pickling.rebuild, pickling.rebuild_as):
            more = (torch.int64,) if define is pickling.rebuild_as else ()
            with pytest.raises(pickle.UnpicklingError):
                loaded(Call(define, storage, *layout, False, OrderedDict(), *more))


@pytest.mark.parametrize("value", BAD_NUMBERS)
def test_numbers_that_are_no_extent_are_refused(value: int) -> None:
    for layout in layouts(value):
        for call in rebuilt(*layout):
            with pytest.raises(RuntimeError):
                call()
        offset, size, stride = layout
        for public in (
            lambda: torch.arange(4).as_strided(size, stride, offset),  # noqa: B023
            lambda: torch.arange(4).set_(torch.arange(4).storage(), offset, size, stride),  # noqa: B023
        ):
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                public()


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.ones(2), 0, (1,), (1,), False),
        ("storage", 0, (1,), (1,), False),
        (torch.ones(2).storage(), 0, 1, (1,), False),
        (torch.ones(2).storage(), 0, (1,), "1", False),
        (torch.ones(2).storage(), 0, (1,), {0: 1}, False),
        (torch.ones(2).storage(), 0, (1,), (1, 1), False),
        (torch.ones(2).storage(), 0, (1,), (1,), 1),
        (torch.ones(2).storage(), 0, (1,), (1,), torch.ones(2)),
    ],
)
def test_other_arguments_of_a_rebuilt_tensor_have_their_types(arguments: Any) -> None:
    with pytest.raises((TypeError, RuntimeError)):
        pickling.rebuild(*arguments, OrderedDict())
    with pytest.raises((TypeError, RuntimeError)):
        pickling.rebuild_as(*arguments, OrderedDict(), torch.float32)


def test_the_dtype_of_a_rebuilt_tensor_is_a_dtype() -> None:
    from flambeau.serialization.pickle_names import BYTES, STORAGES

    for kind in (BYTES, STORAGES[torch.int64], "int64", np.int64, None):
        with pytest.raises(TypeError, match=r"dtype must be torch\.dtype"):
            pickling.rebuild_as(torch.ones(2).storage(), 0, (1,), (1,), False, None, kind)


@pytest.mark.parametrize("seed", range(20))
def test_a_layout_is_accepted_exactly_if_all_its_elements_lie_within(seed: int) -> None:
    """The reference enumerates the elements."""
    rng = random.Random(seed)
    accepted = 0
    for _ in range(300):
        shape = tuple(rng.choice((0, 1, 1, 2, 3, 5)) for _ in range(rng.randrange(4)))
        strides = tuple(rng.choice((0, 1, 2, 3, 7, 1 << 62)) for _ in shape)
        nbytes, itemsize, offset = rng.randrange(90), rng.choice((1, 2, 4, 8)), rng.randrange(12)
        places = [offset + sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(*shape)]
        fits = all((place + 1) * itemsize <= nbytes for place in places)
        try:
            require_within(nbytes, itemsize, shape, strides, offset)
            accepted += 1
            assert fits
        except RuntimeError as error:
            assert "out of bounds for storage of size" in str(error) and not fits
    assert 20 < accepted < 290


@pytest.mark.parametrize("shape", [(1,), (0,), (1, 0), (1, 1)])
def test_strides_of_single_elements_may_be_huge(shape: tuple[int, ...]) -> None:
    x = torch.arange(4).as_strided(shape, ((1 << 63) - 1,) * len(shape))
    assert (x + 1).shape == shape and x.clone().tolist() == x.tolist()
    assert x.numpy().shape == shape


def test_public_functions_convert_what_pytorch_converts() -> None:
    x, two = torch.arange(10), torch.tensor(2, dtype=torch.uint8)
    assert x.as_strided((two,), (np.int64(2),), two).tolist() == [2, 4]
    assert x.as_strided((1, True), (1, 1)).shape == (1, 1)
    assert torch.arange(3).set_(x.untyped_storage(), np.int64(2), (two,), (two,)).tolist() == [2, 4]
    wide = torch.tensor(200, dtype=torch.uint8)  # 2 * 200 in 8 bits is 144
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.as_strided((3,), (wide,))


@pytest.mark.parametrize("wrong", [True, 0.5, float("nan"), "1", 1j])
def test_public_functions_refuse_other_types(wrong: Any) -> None:
    x = torch.arange(10)
    for call in (
        lambda: x.as_strided((wrong,), (1,)),
        lambda: x.as_strided((1,), (wrong,)),
        lambda: x.as_strided((1,), (1,), wrong),
        lambda: x.clone().set_(x.storage(), wrong, (1,), (1,)),
        lambda: x.clone().set_(x.storage(), 0, (wrong,), (1,)),
        lambda: x.clone().set_(x.storage(), 0, (1,), (wrong,)),
        lambda: torch.empty_strided((1,), (wrong,)),
        lambda: torch.frombuffer(bytearray(8), dtype=torch.uint8, count=wrong),
        lambda: torch.frombuffer(bytearray(8), dtype=torch.uint8, offset=wrong),
        lambda: torch.UntypedStorage.from_buffer(bytearray(8), dtype=torch.uint8, count=wrong),
        lambda: torch.UntypedStorage.from_buffer(bytearray(8), dtype=torch.uint8, offset=wrong),
    ):
        with pytest.raises(TypeError):
            call()


def test_messages_between_loaders_and_workers_are_checked_too() -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        tensor_of(bytearray(16), torch.int64, (3,), (1,))
    assert tensor_of(bytearray(16), torch.int64, (2,), (1,)).tolist() == [0, 0]


HUGE = {
    "adaptive_avg_pool1d": lambda x: torch.nn.functional.adaptive_avg_pool1d(x, 1 << 40),
    "adaptive_max_pool1d": lambda x: torch.nn.functional.adaptive_max_pool1d(x, 1 << 40),
    "tril_indices": lambda x: torch.tril_indices(1 << 40, 1 << 40, device=x.device),
    "combinations": lambda x: torch.combinations(x.flatten(), 40),
    "histogramdd": lambda x: torch.histogramdd(x.cpu(), [1 << 30] * 3),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", HUGE)
def test_sizes_beyond_memory_raise_runtimeerror_and_lose_no_device(name: str, device: str) -> None:
    with torch.virtual(devices=1):
        x = torch.ones(30, 3, device=device)
        with pytest.raises(RuntimeError):
            HUGE[name](x)
        assert x.sum().item() == 90
