"""Attention, transformers and adaptive softmax beside PyTorch's, beyond the table of modules: masks, errors, hints."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from nn_kit import agree, fails, outcome
from support import torch

import flambeau
from flambeau import nn


def numbers(room: Any, *shape: int, seed: int = 0) -> Any:
    values = np.random.default_rng(seed + sum(shape)).uniform(-1, 1, shape)
    return room.tensor(values.tolist(), dtype=room.float64).reshape(shape)


def attention(room: Any, *args: Any, **named: Any) -> Any:
    room.manual_seed(2)
    return room.nn.MultiheadAttention(*args, **named).double()


def close(run: Any) -> None:
    with warnings.catch_warnings(), torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        warnings.simplefilter("ignore")
        ours, theirs = run(flambeau), run(torch)  # others of PyTorch's kernels have no second derivative
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert tuple(a.shape) == tuple(b.shape)
            np.testing.assert_allclose(np.array(a.tolist()), np.array(b.tolist()), 1e-9, 1e-11)


@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("need_weights", (False, True))
def test_self_attention_projects_once(batch_first: bool, need_weights: bool) -> None:
    def run(room: Any) -> Any:
        module = attention(room, 8, 2, batch_first=batch_first)
        x = numbers(room, 3, 4, 8).requires_grad_()
        out, weights = module(x, x, x, need_weights=need_weights)
        grads = room.autograd.grad((out * out).sum(), [x, *module.parameters()], create_graph=True)
        second = room.autograd.grad(sum((g * g).sum() for g in grads), [x, module.in_proj_weight])
        return [out, weights, *grads, *second]

    close(run)


@pytest.mark.parametrize("padded", (False, True))
@pytest.mark.parametrize("need_weights", (False, True))
def test_the_causal_hint_gives_what_the_mask_gives(padded: bool, need_weights: bool) -> None:
    def run(room: Any) -> Any:
        module = attention(room, 8, 2, batch_first=True)
        x = numbers(room, 2, 4, 8)
        mask = room.nn.Transformer.generate_square_subsequent_mask(4, dtype=room.float64)
        padding = (
            room.tensor([[0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0]], dtype=room.float64) if padded else None
        )
        hinted = module(x, x, x, padding, need_weights, mask, is_causal=True)
        plain = module(x, x, x, padding, need_weights, mask)
        assert float((hinted[0] - plain[0]).abs().max()) < 1e-12
        return hinted

    close(run)


def test_static_keys_and_values_of_the_function() -> None:
    def run(room: Any) -> Any:
        q, k = numbers(room, 3, 2, 8), numbers(room, 4, 2, 8)
        weight, out = numbers(room, 24, 8), numbers(room, 8, 8)
        static = (numbers(room, 4, 5, 4), numbers(room, 4, 5, 4, seed=1))
        return room.nn.functional.multi_head_attention_forward(
            q,
            k,
            k,
            8,
            2,
            weight,
            None,
            None,
            None,
            False,
            0.0,
            out,
            None,
            static_k=static[0],
            static_v=static[1],
        )

    close(run)


def test_second_derivatives_of_a_transformer() -> None:
    def run(room: Any) -> Any:
        room.manual_seed(0)
        layer = room.nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu").double()
        x = numbers(room, 3, 2, 8).requires_grad_()
        grads = room.autograd.grad((layer(x) ** 3).sum(), [x, layer.linear1.weight], create_graph=True)
        return room.autograd.grad(sum((g * g).sum() for g in grads), [x, layer.self_attn.in_proj_weight])

    close(run)


def test_inference_of_encoders_at_rows_that_are_not_padding() -> None:
    """PyTorch takes a path of its own there, which leaves zeros at padded rows."""
    kept = [[True, True, True, False], [True, True, False, False]]

    def run(room: Any) -> Any:
        room.manual_seed(0)
        layer = room.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dtype=room.float64)
        encoder = room.nn.TransformerEncoder(layer, 2).eval()
        padding = ~room.tensor(kept)
        with room.no_grad():
            return [encoder(numbers(room, 2, 4, 8), src_key_padding_mask=padding)[room.tensor(kept)]]

    close(run)


def test_custom_parts_and_activations() -> None:
    def run(room: Any) -> Any:
        room.manual_seed(0)

        class Part(room.nn.Module):
            def forward(self, x: Any, *args: Any, **named: Any) -> Any:
                return x * 2

        whole = room.nn.Transformer(8, 2, custom_encoder=Part(), custom_decoder=Part()).double()
        layer = room.nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation=room.nn.SiLU()).double()
        x = numbers(room, 3, 2, 8)
        return [whole(x, x), layer(x)]

    close(run)


def test_adaptive_softmax_predicts_and_gives_all_probabilities() -> None:
    def run(room: Any) -> Any:
        room.manual_seed(0)
        module = room.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 9], div_value=2.0).double()
        x = numbers(room, 16, 8) * 6
        log = module.log_prob(x)
        assert float((log.exp().sum(1) - 1).abs().max()) < 1e-12
        assert room.equal(module.predict(x), log.argmax(1))
        few = x[log.argmax(1) < 4]
        return [log, module.predict(x), module.predict(few), *module(x, module.predict(x))]

    close(run)


def test_a_transformer_trains_on_a_virtual_gpu_and_leaves_no_memory() -> None:
    with flambeau.virtual(devices=1):
        model = nn.Transformer(8, 2, 1, 1, 16).cuda()
        before = flambeau.cuda.memory_allocated()
        x = flambeau.randn(5, 2, 8, device="cuda")
        mask = nn.Transformer.generate_square_subsequent_mask(5, device="cuda")
        for _ in range(2):
            model(x, x, tgt_mask=mask, tgt_is_causal=True).sum().backward()
            assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
            model.zero_grad()
        del x, mask
        assert flambeau.cuda.memory_allocated() == before


def attend(t: Any, *args: Any, size: int = 8, heads: int = 2, **named: Any) -> Any:
    return t.nn.MultiheadAttention(size, heads)(*args, **named)


WRONG = {
    "no heads": lambda t: t.nn.MultiheadAttention(8, 0),
    "odd heads": lambda t: t.nn.MultiheadAttention(8, 3),
    "query dims": lambda t: attend(t, t.ones(8), t.ones(8), t.ones(8)),
    "key dims": lambda t: attend(t, t.ones(3, 1, 8), t.ones(3, 8), t.ones(3, 1, 8)),
    "key dims unbatched": lambda t: attend(t, t.ones(3, 8), t.ones(3, 8), t.ones(3, 1, 8)),
    "padding dims": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, t.ones(3) > 2),
    "padding dims unbatched": lambda t: attend(t, *[t.ones(3, 8)] * 3, t.ones(1, 3) > 2),
    "padding shape": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, t.ones(1, 4) > 2),
    "padding batch": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, t.ones(2, 3) > 2),
    "padding kind": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, t.ones(1, 3, dtype=t.int64)),
    "mask dims": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, attn_mask=t.ones(3)),
    "mask shape": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, attn_mask=t.ones(3, 4)),
    "mask shape per head": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, attn_mask=t.ones(1, 3, 3)),
    "mask shape unbatched": lambda t: attend(t, *[t.ones(3, 8)] * 3, attn_mask=t.ones(1, 3, 3)),
    "mask kind": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, attn_mask=t.ones(3, 3, dtype=t.int32)),
    "causal without mask": lambda t: attend(t, *[t.ones(3, 1, 8)] * 3, is_causal=True),
    "embedding": lambda t: attend(t, *[t.ones(3, 1, 6)] * 3),
    "key and value": lambda t: attend(t, t.ones(3, 1, 8), t.ones(4, 1, 8), t.ones(5, 1, 8)),
    "activation": lambda t: t.nn.TransformerEncoderLayer(8, 2, activation="tanh"),
    "batches": lambda t: t.nn.Transformer(8, 2, 1, 1, 8, custom_encoder=t.nn.Identity())(t.ones(2, 1, 8), t.ones(2, 2, 8)),
    "features": lambda t: t.nn.Transformer(8, 2, 1, 1, 8, custom_encoder=t.nn.Identity())(t.ones(2, 1, 8), t.ones(2, 1, 6)),
    "no cutoffs": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, []),
    "cutoffs fall": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 3]),
    "cutoff too large": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 20]),
    "cutoff zero": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [0, 2]),
    "target dims": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5])(t.ones(2, 8), t.ones(2, 1).long()),
    "target batch": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5])(t.ones(2, 8), t.ones(3).long()),
    "input dims": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5])(t.ones(2, 8, 1), t.ones(2).long()),
    "input dims unbatched": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5])(t.ones(2, 8), t.tensor(1)),
    "target value": lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5])(t.ones(2, 8), t.tensor([1, 20])),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    fails(WRONG[name])


def test_masks_of_two_kinds_warn() -> None:
    def run(room: Any) -> Any:
        x = room.ones(3, 1, 8)
        return attend(room, x, x, x, room.ones(1, 3) > 2, attn_mask=room.zeros(3, 3))[0].shape

    ours, theirs = outcome(run, flambeau), outcome(run, torch)
    assert ours[0] == theirs[0] and set(ours[1]) == set(theirs[1]) != set()


@pytest.mark.parametrize("need_weights", (True, False))
def test_queries_of_no_rows(need_weights: bool) -> None:
    def run(t: Any) -> Any:
        k = t.ones(2, 1, 8)
        return tuple(attend(t, t.ones(0, 1, 8), k, k, need_weights=need_weights)[0].shape)

    agree(run)


def test_the_causal_mask() -> None:
    agree(lambda t: t.nn.Transformer.generate_square_subsequent_mask(4))
    agree(lambda t: t.nn.Transformer.generate_square_subsequent_mask(3, dtype=t.float64))
