"""Questions about tensors, switches of the namespace, default devices, and drawing, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import agree, outcome, twins
from support import from_torch, same, torch

import flambeau


@pytest.fixture
def where():
    with flambeau.virtual(devices=2):
        yield flambeau.device("cuda:0")


# -- questions ----------------------------------------------------------------------------------------------


def test_isreal_is_nonzero_is_signed():
    for x in (torch.tensor([1 + 0j, 2j]), torch.tensor([1.0, 2.0]), torch.tensor([True]), torch.tensor(3)):
        same(flambeau.isreal(from_torch(x)), torch.isreal(x))
        assert from_torch(x).is_signed() == x.is_signed()
        agree(
            outcome(lambda x=x: flambeau.is_nonzero(from_torch(x))), outcome(lambda x=x: torch.is_nonzero(x))
        )
    assert type(outcome(lambda: flambeau.is_nonzero(3))) is type(outcome(lambda: torch.is_nonzero(3)))
    assert not from_torch(torch.ones(2, dtype=torch.uint8)).is_signed()


def test_is_set_to_is_storage_typename():
    x = flambeau.ones(4)
    assert x.is_set_to(x.view(4))
    assert not x.is_set_to(x[:2])
    assert not x.is_set_to(flambeau.ones(4))
    assert flambeau.is_storage(x.untyped_storage())
    assert not flambeau.is_storage(x)
    assert x.storage_type() is type(x.storage())
    for ours, theirs in (
        (x, torch.ones(4)),
        (x.long(), torch.ones(4).long()),
        (3, 3),
        ("a", "a"),
        (int, int),
    ):
        assert flambeau.typename(ours) == torch.typename(theirs)


def test_shared_memory_is_asked_for_on_the_cpu_and_given_on_cuda(where):
    for library in (flambeau, torch):
        x = library.ones(2)
        assert not x.is_shared()
        assert x.share_memory_() is x
        assert x.is_shared()
    x = flambeau.ones(2, device=where)
    assert x.is_shared()
    assert x.share_memory_() is x


@given(twins((0, 3)))
def test_apply_and_map(pair):
    ours, theirs = pair
    if 0 in theirs.stride():
        return
    agree(ours.apply_(lambda x: x * 2 + 1), theirs.apply_(lambda x: x * 2 + 1))
    agree(
        ours.map_(ours.clone(), lambda x, y: x - 3 * y), theirs.map_(theirs.clone(), lambda x, y: x - 3 * y)
    )


def test_apply_and_map_refuse_what_pytorch_refuses(where):
    x, y = flambeau.ones(2), torch.ones(2)
    agree(outcome(lambda: x.map_(x.double(), max)), outcome(lambda: y.map_(y.double(), max)))
    with pytest.raises(TypeError):
        flambeau.ones(2, device=where).apply_(abs)


@given(twins((0, 3), "int64"), st.integers(-1, 6), st.integers(-3, 3))
def test_nonzero_static(pair, size, fill):
    ours, theirs = ((x % 3) for x in pair)
    agree(
        outcome(lambda: flambeau.nonzero_static(ours, size=size, fill_value=fill)),
        outcome(lambda: torch.nonzero_static(theirs, size=size, fill_value=fill)),
        strides=False,
    )


@pytest.mark.parametrize("shape", [(2, 3), (3, 1, 4), 7, (), (2, -1), "ab", (2.0, 3)])
def test_unravel_index(shape):
    for places in (
        torch.tensor([5, 3, 0]),
        torch.tensor(4),
        torch.tensor([[1], [2]], dtype=torch.int32),
        torch.ones(2),
    ):
        if shape == ():
            continue
        want = outcome(lambda places=places: torch.unravel_index(places, shape))
        agree(outcome(lambda places=places: flambeau.unravel_index(from_torch(places), shape)), want)


@given(st.permutations(range(3)))
def test_empty_permuted(order):
    ours, theirs = flambeau.empty_permuted((2, 3, 4), order), torch.empty_permuted((2, 3, 4), order)
    assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())


def test_empty_permuted_refuses_bad_orders():
    for order in ((0, 1), (0, 0, 1), (0, 1, 5)):
        want = outcome(lambda order=order: torch.empty_permuted((2, 3, 4), order))
        agree(outcome(lambda order=order: flambeau.empty_permuted((2, 3, 4), order)), want)


# -- the default device ---------------------------------------------------------------------------------------


def test_new_tensors_are_made_on_the_default_device(where):
    makers = (
        lambda: flambeau.empty(2), lambda: flambeau.zeros(2), lambda: flambeau.full((2,), 1), lambda: flambeau.arange(3),
        lambda: flambeau.linspace(0, 1, 3), lambda: flambeau.eye(2), lambda: flambeau.rand(2), lambda: flambeau.randn(2),
        lambda: flambeau.randint(3, (2,)), lambda: flambeau.randperm(3), lambda: flambeau.tensor([1.0]),
        lambda: flambeau.empty_strided((2,), (1,)), lambda: flambeau.ones(2),
    )  # fmt: skip
    for make in makers:
        assert make().device.type == "cpu"
        with flambeau.device("cuda:1"):
            assert make().device == flambeau.device("cuda:1")
            assert flambeau.ones_like(flambeau.ones(2, device=where)).device is where
            assert flambeau.ones(2, device="cpu").device.type == "cpu"
            with flambeau.device("cpu"):
                assert make().device.type == "cpu"
            assert make().device == flambeau.device("cuda:1")
        assert make().device.type == "cpu"


def test_set_default_device(where):
    assert flambeau.get_default_device() == flambeau.device("cpu")
    flambeau.set_default_device("cuda")
    try:
        assert flambeau.ones(2).device is where
        with flambeau.cuda.device(1):
            assert flambeau.ones(2).device == flambeau.device("cuda:1")
            assert flambeau.get_default_device() == flambeau.device("cuda:1")
        state = flambeau.get_rng_state()
        assert state.device.type == "cpu"
        flambeau.set_rng_state(state)
        x = flambeau.ones(3)
        assert x[[0, 1]].device is where
        assert flambeau.from_numpy(np.ones(2)).device.type == "cpu"
    finally:
        flambeau.set_default_device(None)
    assert flambeau.ones(2).device.type == "cpu"
    assert type(outcome(lambda: flambeau.set_default_device("gpu"))) is RuntimeError


MAKERS = {
    "tensor of an array": lambda m, x: m.tensor(x.numpy()),
    "tensor of a tensor": lambda m, x: m.tensor(x),
    "as_tensor of an array": lambda m, x: m.as_tensor(x.numpy()),
    "as_tensor of a list": lambda m, x: m.as_tensor([1.0]),
    "as_tensor of a tensor": lambda m, x: m.as_tensor(x),
    "as_tensor with a device": lambda m, x: m.as_tensor(x, device="cpu"),
    "asarray of an array": lambda m, x: m.asarray(x.numpy()),
    "asarray of a tensor": lambda m, x: m.asarray(x),
    "from_numpy": lambda m, x: m.from_numpy(x.numpy()),
    "frombuffer": lambda m, x: m.frombuffer(bytearray(8), dtype=m.float32),
    "Tensor": lambda m, x: m.Tensor([1.0]),
    "new_tensor": lambda m, x: x.new_tensor([1.0]),
    "new_zeros": lambda m, x: x.new_zeros(3),
    "zeros_like": lambda m, x: m.zeros_like(x),
    "normal": lambda m, x: m.normal(0.0, 1.0, (3,)),
    "hann_window": lambda m, x: m.hann_window(4),
    "kaiser_window": lambda m, x: m.kaiser_window(4),
    "windows.hann": lambda m, x: m.signal.windows.hann(4),
    "fftfreq": lambda m, x: m.fft.fftfreq(4),
    "scalar_tensor": lambda m, x: m.scalar_tensor(1.0),
    "lengths of sequences": lambda m, x: (
        m.nn.utils.rnn.pack_padded_sequence(x[None, :, None], [3], True).batch_sizes
    ),
    "parameters": lambda m, x: m.nn.Linear(2, 2).weight,
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("default", [None, "cpu", "meta"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_selected_device_moves_data_as_in_pytorch(make, default):
    places = []
    for m in (torch, flambeau):
        x = m.zeros(3)
        m.set_default_device(default)
        try:
            places.append(str(make(m, x).device))
        finally:
            m.set_default_device(None)
    assert places[0] == places[1]


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_as_tensor_moves_tensors_only_to_a_selected_device(where):
    x = flambeau.ones(2, device=where)
    for convert in (flambeau.tensor, flambeau.as_tensor, flambeau.asarray):
        assert convert(x).device is where
        with flambeau.device("cpu"):
            assert convert(x).device.type == "cpu"


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_a_default_tensor_type_leaves_tensors_where_they_are(where):
    flambeau.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        assert flambeau.as_tensor(flambeau.ones(2, device="cpu")).device.type == "cpu"
        assert flambeau.as_tensor([1.0]).device is where
        with flambeau.device("cpu"):
            assert flambeau.ones(2).device.type == "cpu"
        assert flambeau.ones(2).device is where
    finally:
        flambeau.set_default_tensor_type("torch.FloatTensor")
    assert flambeau.ones(2).device.type == "cpu"


def test_a_default_device_that_is_not_there_is_refused_at_use(where):
    with flambeau.device("cuda:7"), pytest.raises(RuntimeError):
        flambeau.ones(2)


# -- determinism and threads --------------------------------------------------------------------------------------


@pytest.fixture
def as_before():
    yield
    flambeau.use_deterministic_algorithms(False)
    torch.use_deterministic_algorithms(False)


def _state(m):
    return (
        m.are_deterministic_algorithms_enabled(),
        m.is_deterministic_algorithms_warn_only_enabled(),
        m.get_deterministic_debug_mode(),
    )


def test_deterministic_switches(as_before):
    assert _state(flambeau) == _state(torch)
    for change in (
        lambda m: m.use_deterministic_algorithms(True),
        lambda m: m.use_deterministic_algorithms(True, warn_only=True),
        lambda m: m.use_deterministic_algorithms(False, warn_only=True),
        lambda m: m.set_deterministic_debug_mode("error"),
        lambda m: m.set_deterministic_debug_mode(1),
        lambda m: m.set_deterministic_debug_mode(0),
        lambda m: m.set_deterministic_debug_mode("warn"),
        lambda m: m.set_deterministic_debug_mode(3),
        lambda m: m.set_deterministic_debug_mode("loud"),
        lambda m: m.set_deterministic_debug_mode(1.5),
    ):
        assert type(outcome(lambda change=change: change(flambeau))) is type(
            outcome(lambda change=change: change(torch))
        )
        assert _state(flambeau) == _state(torch)


def test_a_sum_by_atomics_is_refused_where_determinism_is_asked_for(where, as_before):
    places, weights = flambeau.tensor([0, 1, 1], device=where), flambeau.ones(3, device=where)
    flambeau.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="_bincount_cuda does not have a deterministic implementation"):
        flambeau.bincount(places, weights)
    assert flambeau.bincount(places).tolist() == [1, 2]
    assert flambeau.bincount(places.cpu(), weights.cpu()).tolist() == [1, 2]
    flambeau.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="warn_only=True"):
        assert flambeau.bincount(places, weights).tolist() == [1, 2]


def test_threads():
    was = flambeau.get_num_threads()
    try:
        flambeau.set_num_threads(2)
        assert flambeau.get_num_threads() == 2
    finally:
        flambeau.set_num_threads(was)
    for bad in (0, -1, 1.5, True):
        want = outcome(lambda bad=bad: torch.set_num_threads(bad))
        assert type(outcome(lambda bad=bad: flambeau.set_num_threads(bad))) is type(want), bad
    assert flambeau.get_num_interop_threads() == 1
    flambeau.set_num_interop_threads(1)
    with pytest.raises(RuntimeError):
        flambeau.set_num_interop_threads(4)
    assert flambeau.set_flush_denormal(True) is False


# -- drawing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_multinomial_draws_pytorchs_numbers(name):
    weights = torch.tensor([[0.1, 0.5, 0.2, 0.2], [1.0, 2.0, 3.0, 0.0]]).to(getattr(torch, name))
    for args in ((1,), (2,), (3,), (1, True), (7, True)):
        for w in (weights, weights[0]):
            torch.manual_seed(5)
            flambeau.manual_seed(5)
            same(flambeau.multinomial(from_torch(w), *args), torch.multinomial(w, *args))
    generator = flambeau.Generator().manual_seed(3)
    theirs = torch.Generator().manual_seed(3)
    same(from_torch(weights).multinomial(2, generator=generator), weights.multinomial(2, generator=theirs))
    out = flambeau.empty(0, dtype=flambeau.int64)
    assert flambeau.multinomial(from_torch(weights), 2, out=out) is out


def test_multinomial_refuses_what_pytorch_refuses():
    for run in (
        lambda m: m.multinomial(m.ones(3), 4),
        lambda m: m.multinomial(m.ones(3), 0),
        lambda m: m.multinomial(m.ones(3).long(), 1),
        lambda m: m.multinomial(m.ones(1, 2, 3), 1),
        lambda m: m.multinomial(m.zeros(3), 1),
        lambda m: m.multinomial(-m.ones(3), 1),
        lambda m: m.multinomial(m.ones(3) / 0, 1),
    ):
        want = outcome(lambda run=run: run(torch))
        assert isinstance(want, RuntimeError)
        assert type(outcome(lambda run=run: run(flambeau))) is type(want)


def test_multinomial_on_a_device_follows_the_weights(where):
    weights = flambeau.tensor([1.0, 0.0, 3.0], device=where)
    flambeau.manual_seed(0)
    drawn = flambeau.multinomial(weights, 4000, replacement=True)
    counts = flambeau.bincount(drawn, minlength=3).tolist()
    assert counts[1] == 0
    assert abs(counts[0] - 1000) < 5 * 30
    assert set(flambeau.multinomial(weights, 2).tolist()) == {0, 2}


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 10.0, 80.0])
def test_poisson_has_the_distribution(name, rate, where):
    count, kind = 20000, getattr(flambeau, name)
    flambeau.manual_seed(1)
    for device in ("cpu", where):
        x = flambeau.poisson(flambeau.full((count,), rate, dtype=kind, device=device))
        assert x.dtype is kind
        values = x.cpu().double().numpy()
        assert (values == np.floor(values)).all()
        assert abs(values.mean() - rate) <= 6 * (rate / count) ** 0.5
        assert abs(values.var() - rate) <= 8 * rate * (2 / count) ** 0.5 + 6 * (rate / count) ** 0.5
        # the whole distribution, by the probability of each of its likely numbers
        for k in range(int(rate - rate**0.5), int(rate + rate**0.5) + 1):
            p = (
                float(torch.distributions.Poisson(rate).log_prob(torch.tensor(float(max(k, 0)))).exp())
                if rate
                else 1.0
            )
            assert abs((values == max(k, 0)).mean() - p) <= 6 * (p / count) ** 0.5


def test_poisson_repeats_by_seed_and_takes_generators(where):
    rates = flambeau.linspace(0, 50, 40)
    for device in ("cpu", where):
        x = rates.to(device)
        first = flambeau.poisson(x, generator=flambeau.Generator(device).manual_seed(2))
        again = flambeau.poisson(x, generator=flambeau.Generator(device).manual_seed(2))
        other = flambeau.poisson(x, generator=flambeau.Generator(device).manual_seed(4))
        assert first.tolist() == again.tolist() != other.tolist()
    for run in (lambda m: m.poisson(-m.ones(2)), lambda m: m.poisson(m.ones(2).long())):
        assert type(outcome(lambda run=run: run(flambeau))) is type(outcome(lambda run=run: run(torch)))


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_numbers_are_drawn_as_pytorchs(name):
    for size in ((3,), (5, 8)):
        for make in (lambda m, size: m.randn(size, dtype=getattr(m, name)), lambda m, size: m.rand(size, dtype=getattr(m, name)),
                     lambda m, size: m.zeros(size, dtype=getattr(m, name)).normal_(1.5, 2.0),
                     lambda m, size: m.randn_like(m.zeros(size, dtype=getattr(m, name)))):  # fmt: skip
            torch.manual_seed(7)
            flambeau.manual_seed(7)
            ours, theirs = make(flambeau, size), make(torch, size)
            assert repr(ours.dtype) == repr(theirs.dtype)
            assert np.allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
