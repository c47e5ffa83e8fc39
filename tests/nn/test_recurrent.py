"""Recurrent networks beside PyTorch's: initial states, packed sequences, gradients of both orders, errors, launches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from launches import launches
from module_cases import flat
from nn_kit import agree, fails, outcome
from support import HALVES, torch

import flambeau
from flambeau import nn
from flambeau.runtime import system

LENGTHS = [2, 5, 1, 5, 3]
FORMS = [
    ("LSTM", {}), ("LSTM", {"num_layers": 2, "bidirectional": True}), ("LSTM", {"proj_size": 2, "bidirectional": True}),
    ("LSTM", {"bias": False, "num_layers": 2}), ("GRU", {}), ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {"bias": False}), ("RNN", {}), ("RNN", {"nonlinearity": "relu", "bidirectional": True, "num_layers": 2}),
]  # fmt: skip
every = pytest.mark.parametrize("kind, settings", FORMS, ids=["-".join([k, *s]) for k, s in FORMS])


def numbers(room: Any, *shape: int, seed: int = 0) -> Any:
    values = np.random.default_rng(seed + sum(shape)).uniform(-1, 1, shape)
    return room.tensor(values.tolist(), dtype=room.float64).reshape(shape).requires_grad_()


def module_of(room: Any, kind: str, settings: dict[str, Any]) -> Any:
    room.manual_seed(1)
    return getattr(room.nn, kind)(3, 4, **settings).double()


def states(room: Any, module: Any, batch: int) -> Any:
    count = module.num_layers * (2 if module.bidirectional else 1)
    h = numbers(room, count, batch, module.proj_size or 4, seed=7)
    return (h, numbers(room, count, batch, 4, seed=8)) if module.mode == "LSTM" else h


def leaves(x: Any, hx: Any, module: Any) -> list[Any]:
    return [x, *(hx if isinstance(hx, tuple) else (hx,)), *module.parameters()]


def weighed(room: Any, outputs: Any) -> Any:
    """A sum in which every element has another weight."""
    total = 0
    for out in outputs:
        weights = (room.arange(out.numel(), dtype=out.dtype) * 0.7 + 0.2).sin().reshape(out.shape)
        total = total + (weights * out).sum()
    return total


def outputs_of(found: Any) -> list[Any]:
    out, last = found
    return [
        getattr(out, "data", out) if isinstance(out, tuple) else out,
        *(last if isinstance(last, tuple) else (last,)),
    ]


def close(run: Any) -> None:
    """Both packages give the same float64 tensors, rounding aside."""
    ours, theirs = run(flambeau), run(torch)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert tuple(a.shape) == tuple(b.shape)
            np.testing.assert_allclose(np.array(a.tolist()), np.array(b.tolist()), 1e-9, 1e-11)


@every
def test_states_and_gradients_from_given_states(kind: str, settings: dict[str, Any]) -> None:
    def run(room: Any) -> list[Any]:
        module = module_of(room, kind, settings)
        x, hx = numbers(room, 5, 3, 3), states(room, module, 3)
        found = outputs_of(module(x, hx))
        return [*found, *room.autograd.grad(weighed(room, found), leaves(x, hx, module))]

    close(run)


@every
@pytest.mark.parametrize("enforce_sorted", (True, False))
def test_packed_sequences(kind: str, settings: dict[str, Any], enforce_sorted: bool) -> None:
    lengths = sorted(LENGTHS, reverse=True) if enforce_sorted else LENGTHS

    def run(room: Any) -> list[Any]:
        module = module_of(room, kind, settings)
        x, hx = numbers(room, 5, 5, 3), states(room, module, 5)
        pack = room.nn.utils.rnn.pack_padded_sequence
        packed = pack(x, lengths, batch_first=True, enforce_sorted=enforce_sorted)
        out, last = module(packed, hx)
        padded, counts = room.nn.utils.rnn.pad_packed_sequence(out, total_length=6, padding_value=0.5)
        assert counts.tolist() == lengths
        found = [padded, *outputs_of((out, last))]
        return [*found, *room.autograd.grad(weighed(room, found), leaves(x, hx, module))]

    close(run)


@every
def test_second_derivatives(kind: str, settings: dict[str, Any]) -> None:
    def run(room: Any) -> list[Any]:
        module = module_of(room, kind, settings)
        x, hx = numbers(room, 4, 3, 3), states(room, module, 3)
        pack = room.nn.utils.rnn.pack_padded_sequence
        out, last = module(pack(x, [4, 2, 1]), hx)
        inputs = leaves(x, hx, module)
        first = room.autograd.grad(weighed(room, outputs_of((out, last))), inputs, create_graph=True)
        return list(room.autograd.grad(weighed(room, [g * g for g in first]), inputs))

    close(run)


def test_a_state_that_hangs_on_the_input_gets_each_gradient_once() -> None:
    def run(room: Any) -> list[Any]:
        module, x = module_of(room, "GRU", {}), numbers(room, 4, 2, 3)
        h = (x.sum(0) @ numbers(room, 3, 4, seed=3)).unsqueeze(0)
        first = room.autograd.grad(weighed(room, module(x, h)), [x, h], create_graph=True)
        return [*first, *room.autograd.grad(weighed(room, first), [x])]

    close(run)


def test_a_second_walk_needs_the_graph_and_saved_states_may_not_change() -> None:
    module = nn.LSTM(3, 4)
    x = flambeau.randn(5, 2, 3)
    out, _ = module(x)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()
    out, _ = module(x * flambeau.ones(3, requires_grad=True))
    out.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_last_states_have_memory_of_their_own() -> None:
    for kind in ("LSTM", "GRU", "RNN"):
        module = getattr(nn, kind)(3, 4)
        with flambeau.no_grad():
            out, last = module(flambeau.randn(5, 2, 3))
            wanted = out.clone()
            (last[0] if kind == "LSTM" else last).zero_()
        assert flambeau.equal(out, wanted)


@pytest.mark.parametrize("kind", ("float16", "bfloat16"))
def test_half_precision(kind: str) -> None:
    for name in ("LSTM", "GRU", "RNN"):
        module = module_of(flambeau, name, {"num_layers": 2})
        x = numbers(flambeau, 5, 3, 3).detach()
        exact = module(x)[0]
        found = module.to(getattr(flambeau, kind))(x.to(getattr(flambeau, kind)))[0]
        assert found.dtype is getattr(flambeau, kind)
        assert float((found.double() - exact).abs().max()) < 0.03


@pytest.mark.parametrize(
    "kind", ("LSTM",) * ("bfloat16" in HALVES) + ("GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")
)
def test_autocast_gives_the_dtypes_that_pytorch_gives(kind: str) -> None:
    def run(room: Any) -> Any:
        module = getattr(room.nn, kind)(3, 4)
        x = room.ones(2, 3) if kind.endswith("Cell") else room.ones(5, 2, 3)
        with room.autocast("cpu"):
            found = [t.dtype for t in flat(module(x))]
            out = flat(module(x.bfloat16() if kind == "LSTM" else x))[0]
        out.float().sum().backward()
        return found, {p.grad.dtype for p in module.parameters()}

    agree(run)


# -- what makes them run well -----------------------------------------------------------------------------


def launched(run: Any) -> dict[str, int]:
    """How often each kernel is launched once all plans are made: gradients are added up by then."""
    run(), run()
    with launches() as names:
        run()
    return {name: names.count(name) for name in names}


@pytest.mark.parametrize(
    "kind, cell, back", (("LSTM", "lstm_cell", 2), ("GRU", "gru_cell", 2), ("RNN", "tanh", 2))
)
def test_a_step_is_a_product_and_a_cell(kind: str, cell: str, back: int) -> None:
    def counts(length: int) -> Any:
        module, x = getattr(nn, kind)(8, 8).cuda(), flambeau.ones(length, 2, 8, device="cuda")
        forward = launched(lambda: module(x))
        out, _ = module(x)
        return forward, launched(lambda: out.backward(out, retain_graph=True))

    with flambeau.virtual(devices=1), flambeau.backends.cudnn.flags(enabled=False):
        (few, few_back), (many, many_back) = counts(4), counts(14)
    more = {name: n - few.get(name, 0) for name, n in many.items() if n != few.get(name, 0)}
    assert more == {"addmm": 10, cell: 10}
    assert sum(many_back.values()) - sum(few_back.values()) == 10 * back
    assert sum(few.values()) - 8 <= 8  # and little around the steps


@pytest.mark.parametrize("where", ("cpu", "cuda"))
@every
def test_a_network_is_one_launch_in_each_direction(kind: str, settings: dict[str, Any], where: str) -> None:
    """Check that a network is one launch, as with cuDNN, and gives the results of single steps, last bits aside."""

    def run(whole: bool) -> tuple[list[Any], list[int]]:
        module = module_of(flambeau, kind, settings).to(where)
        x, hx = numbers(flambeau, 5, 3, 3), states(flambeau, module, 3)
        x, hx = x.to(where), [h.to(where) for h in hx] if isinstance(hx, tuple) else hx.to(where)
        with launches() as names, flambeau.backends.cudnn.flags(enabled=whole):
            found = outputs_of(module(x, hx))
        forward = names.count("recurrent_network")
        with launches() as names:
            loss = weighed(flambeau, [t.cpu() for t in found])
            grads = flambeau.autograd.grad(loss, list(module.parameters()))
        return [t.cpu() for t in (*found, *grads)], [forward, names.count("recurrent_network_backward")]

    with flambeau.virtual(devices=1, races="error"):
        found, counts = run(True)
        assert counts == [1, 1]
        wanted, counts = run(False)
        assert counts == ([0, 0] if where == "cuda" else [1, 1])
    for a, b in zip(found, wanted, strict=True):
        flambeau.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ("LSTM", "GRU", "RNN"))
def test_layers_run_and_walk_back_on_a_stream_of_their_own(kind: str) -> None:
    def program() -> Any:
        flambeau.manual_seed(0)
        module = getattr(nn, kind)(8, 8, num_layers=2, bidirectional=True).cuda()
        x = flambeau.ones(5, 3, 8, device="cuda")
        side = flambeau.cuda.Stream()
        side.wait_stream(flambeau.cuda.current_stream())
        with flambeau.cuda.stream(side):
            out, _ = module(x)
            loss = out.sum()
        loss.backward()
        flambeau.cuda.current_stream().wait_stream(side)
        return [p.grad.cpu().tolist() for p in module.parameters()]

    found = []
    for seed in range(3):
        with flambeau.virtual(devices=1, schedule=f"random:{seed}", races="error"):
            found.append(program())
            assert (
                system.accelerator().detector.certificate().race_free
            )  # and no memory read before it was written
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", ("LSTM", "GRU", "RNN"))
def test_layers_follow_cudnns_tf32_flag(kind: str) -> None:
    flags = flambeau.backends.cudnn
    before, errors = flags.allow_tf32, {}
    flambeau.manual_seed(0)
    module, x = getattr(nn, kind)(64, 64), flambeau.randn(6, 5, 64)
    exact = module.double()(x.double())[0].detach()
    try:
        for on in (True, False):
            flags.allow_tf32 = on
            with flambeau.virtual(devices=1, profile="a100"):
                out = module.float().cuda()(x.cuda())[0].detach().cpu().double()
                module.cpu()
            errors[on] = float((out - exact).abs().max())
    finally:
        flags.allow_tf32 = before
    assert errors[False] < 1e-5 < 3e-5 < errors[True]


@pytest.mark.parametrize("kind", ("LSTM", "GRU", "RNN"))
def test_packed_sequences_on_a_virtual_gpu(kind: str) -> None:
    def run(where: str) -> list[Any]:
        module = module_of(flambeau, kind, {"bidirectional": True}).to(where)
        x = numbers(flambeau, 5, 5, 3).detach().to(where)
        packed = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, True, False)
        out, _ = module(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out)
        padded.sum().backward()
        assert padded.device.type == where
        return [padded.tolist(), *[p.grad.tolist() for p in module.parameters()]]

    wanted = run("cpu")
    with flambeau.virtual(devices=1):
        assert run("cuda") == wanted
        assert flambeau.cuda.memory_allocated() == 0


# -- packing and padding ------------------------------------------------------------------------------------


def test_packed_sequences_of_all_orders_come_back() -> None:
    for lengths in itertools.product((1, 2, 3), repeat=3):

        def run(room: Any, lengths: Any = lengths) -> Any:
            parts = [room.arange(2 * n).reshape(n, 2) + 10 * i for i, n in enumerate(lengths)]
            packed = room.nn.utils.rnn.pack_sequence(parts, enforce_sorted=False)
            return list(packed), room.nn.utils.rnn.unpack_sequence(packed)

        agree(run)


@pytest.mark.parametrize("side", ("left", "right"))
@pytest.mark.parametrize("batch_first", (True, False))
def test_pad_sequence_and_its_gradient(side: str, batch_first: bool) -> None:
    def run(room: Any) -> Any:
        parts = [numbers(room, n, 2, seed=n) for n in (2, 4, 0, 3)]
        padded = room.nn.utils.rnn.pad_sequence(parts, batch_first, -1.5, side)
        return [padded, *room.autograd.grad(weighed(room, [padded]), parts)]

    close(run)


def test_packed_sequences_convert() -> None:
    def run(room: Any) -> Any:
        packed = room.nn.utils.rnn.pack_sequence([room.ones(2, 3), room.ones(4, 3)], enforce_sorted=False)
        forms = [
            packed.double(),
            packed.half(),
            packed.long(),
            packed.int(),
            packed.short(),
            packed.char(),
            packed.byte(),
        ]
        again = room.nn.utils.rnn.PackedSequence((packed.data, packed.batch_sizes))
        alike = (packed.to(room.float32) is packed, packed.cpu() is packed, packed.float() is packed)
        return [list(f) for f in forms], list(again), alike, packed.is_cuda, packed.is_pinned(), repr(packed)

    agree(run)
    with flambeau.virtual(devices=1):
        packed = nn.utils.rnn.pack_sequence([flambeau.ones(2, 3), flambeau.ones(4, 3)], enforce_sorted=False)
        moved = packed.cuda()
        places = [x.device.type for x in moved]
        assert moved.is_cuda and places == ["cuda", "cpu", "cuda", "cuda"]
        assert not moved.cpu().is_cuda and packed.pin_memory().is_pinned()


WRONG = {
    "unsorted": lambda t: t.nn.utils.rnn.pack_padded_sequence(t.ones(3, 2), [1, 3]),
    "too few lengths": lambda t: t.nn.utils.rnn.pack_padded_sequence(t.ones(3, 2), [3]),
    "length zero": lambda t: t.nn.utils.rnn.pack_padded_sequence(t.ones(3, 2), [3, 0]),
    "empty": lambda t: t.nn.utils.rnn.pack_padded_sequence(t.ones(0, 2), [1, 1]),
    "no sequences": lambda t: t.nn.utils.rnn.pad_sequence([]),
    "not iterable": lambda t: t.nn.utils.rnn.pad_sequence(3),
    "side": lambda t: t.nn.utils.rnn.pad_sequence([t.ones(2)], padding_side="top"),
    "total length": lambda t: t.nn.utils.rnn.pad_packed_sequence(
        t.nn.utils.rnn.pack_sequence([t.ones(3)]), total_length=2
    ),
    "packed data": lambda t: t.nn.utils.rnn.PackedSequence(t.ones(2)),
    "dropout": lambda t: t.nn.LSTM(2, 3, dropout=2.0),
    "dropout type": lambda t: t.nn.LSTM(2, 3, dropout=True),
    "bias": lambda t: t.nn.GRU(2, 3, bias=1),
    "batch_first": lambda t: t.nn.GRU(2, 3, batch_first="yes"),
    "input_size": lambda t: t.nn.GRU(2.0, 3),
    "hidden_size": lambda t: t.nn.GRU(2, 0),
    "no layers": lambda t: t.nn.GRU(2, 3, num_layers=0),
    "negative projection": lambda t: t.nn.LSTM(2, 3, proj_size=-1),
    "wide projection": lambda t: t.nn.LSTM(2, 3, proj_size=3),
    "projection of a GRU": lambda t: t.nn.GRU(2, 3, proj_size=1),
    "projection of an RNN": lambda t: t.nn.RNN(2, 3, proj_size=1),
    "nonlinearity": lambda t: t.nn.RNN(2, 3, nonlinearity="gelu"),
    "mode": lambda t: t.nn.RNNBase("ABC", 2, 3),
    "input dims": lambda t: t.nn.RNN(2, 3)(t.ones(2)),
    "input dims of an LSTM": lambda t: t.nn.LSTM(2, 3)(t.ones(1, 1, 1, 2)),
    "input size": lambda t: t.nn.LSTM(2, 3)(t.ones(1, 1, 4)),
    "input dtype": lambda t: t.nn.LSTM(2, 3)(t.ones(1, 1, 2, dtype=t.float64)),
    "hidden size": lambda t: t.nn.GRU(2, 3)(t.ones(1, 1, 2), t.ones(1, 1, 4)),
    "cell size": lambda t: t.nn.LSTM(2, 3)(t.ones(1, 1, 2), (t.ones(1, 1, 3), t.ones(1, 1, 4))),
    "hidden dims": lambda t: t.nn.GRU(2, 3)(t.ones(1, 1, 2), t.ones(1, 3)),
    "hidden dims unbatched": lambda t: t.nn.GRU(2, 3)(t.ones(1, 2), t.ones(1, 1, 3)),
    "states of an LSTM": lambda t: t.nn.LSTM(2, 3)(t.ones(1, 1, 2), (t.ones(1, 3), t.ones(1, 1, 3))),
    "states of an LSTM unbatched": lambda t: t.nn.LSTM(2, 3)(t.ones(1, 2), (t.ones(1, 1, 3), t.ones(1, 3))),
    "no time": lambda t: t.nn.LSTM(2, 3)(t.ones(0, 1, 2)),
    "cell input dims": lambda t: t.nn.GRUCell(2, 3)(t.ones(1, 1, 2)),
    "cell hidden dims": lambda t: t.nn.RNNCell(2, 3)(t.ones(2), t.ones(1, 1, 3)),
    "LSTM cell hidden dims": lambda t: t.nn.LSTMCell(2, 3)(t.ones(1, 2), (t.ones(1, 3), t.ones(1, 1, 3))),
    "cell input size": lambda t: t.nn.GRUCell(2, 3)(t.ones(1, 4)),
    "cell hidden size": lambda t: t.nn.GRUCell(2, 3)(t.ones(1, 2), t.ones(1, 4)),
    "cell batch": lambda t: t.nn.GRUCell(2, 3)(t.ones(1, 2), t.ones(2, 3)),
    "cell nonlinearity": lambda t: t.nn.RNNCell(2, 3, nonlinearity="gelu")(t.ones(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    fails(WRONG[name])


def test_lengths_beyond_the_padded_length_are_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"length \(4\) exceeds dimension size \(3\)"
    ):  # PyTorch packs nonsense
        nn.utils.rnn.pack_padded_sequence(flambeau.ones(3, 2), [4, 1])


def test_warns_of_dropout_that_does_nothing() -> None:
    def run(room: Any) -> Any:
        return repr(room.nn.LSTM(2, 3, dropout=0.5))

    assert outcome(run, flambeau)[1] == outcome(run, torch)[1] != []


def test_the_torch_namespaces_forms() -> None:
    def run(room: Any) -> list[Any]:
        module = module_of(room, "GRU", {"num_layers": 2})
        x, h = numbers(room, 4, 3, 3), states(room, module, 3)
        params = list(module.parameters())
        found = [*room.gru(x, h, params, True, 2, 0.0, True, False, False)]
        found += room.gru(x.reshape(12, 3), room.tensor([3] * 4), h, params, True, 2, 0.0, True, False)
        found += room.gru(x, h, params, has_biases=True, num_layers=2, dropout=0.0, train=True, bidirectional=False,
                          batch_first=False)  # fmt: skip
        return found

    close(run)
    with pytest.raises(TypeError, match=r"gru\(\) takes"):
        flambeau.gru(flambeau.ones(1, 1, 1))
