"""Embeddings, one_hot, dropout and attention against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from functional import HALF_AND_UP, both, classes, draw, refuses
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, same, torch

import flambeau

NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 3e-6, "float64": 1e-14}


@pytest.mark.parametrize("kind", HALF_AND_UP)
def test_embedding(kind: str) -> None:
    weight = draw(7, 4, kind=kind)
    for index in (
        classes(5, count=7),
        classes(2, 3, count=7),
        classes(count=7),
        classes(0, count=7),
        torch.tensor([[3]]).int(),
    ):
        both(lambda nn, i, w: nn.embedding(i, w), index, weight, ulps=0)
    both(lambda nn, i, w: nn.embedding(i, w, padding_idx=-1), classes(5, count=7), weight, ulps=0)
    ours = from_torch(weight)
    index = torch.tensor([1, 3, 1, 5])
    for norm_type in (1.0, 2.0):
        got = flambeau.nn.functional.embedding(from_torch(index), ours, max_norm=1.5, norm_type=norm_type)
        same(
            got,
            torch.nn.functional.embedding(index, weight, max_norm=1.5, norm_type=norm_type),
            4,
            strides=False,
        )
    same(ours, weight, 4)


@pytest.mark.parametrize("mode", ("sum", "mean", "max"))
@pytest.mark.parametrize("kind", ("float32", "float64"))
def test_embedding_bag(mode: str, kind: str) -> None:
    weight, index = draw(7, 4, kind=kind), classes(9, count=7)
    offsets = torch.tensor([0, 2, 2, 6])
    near = NEAR[kind]
    both(lambda nn, i, w, o: nn.embedding_bag(i, w, o, mode=mode), index, weight, offsets, atol=near)
    both(lambda nn, i, w, o: nn.embedding_bag(i[:0], w, o * 0, mode=mode), index, weight, offsets, atol=near)
    both(lambda nn, i, w: nn.embedding_bag(i.reshape(3, 3), w, mode=mode), index, weight, atol=near)
    both(lambda nn, i, w: nn.embedding_bag(i[:0].reshape(0, 3), w, mode=mode), index, weight, atol=near)
    if mode == "sum":
        both(
            lambda nn, i, w, s: nn.embedding_bag(i.reshape(3, 3), w, mode=mode, per_sample_weights=s.view(3, 3)),
            index, weight, draw(9, kind=kind), atol=near,
        )  # fmt: skip
    both(
        lambda nn, i, w, o: nn.embedding_bag(i, w, o, mode=mode, include_last_offset=True),
        index, weight, torch.tensor([0, 2, 9]), atol=near,
    )  # fmt: skip
    for padding in (int(index[0]), -1):
        both(
            lambda nn, i, w, o, p=padding: nn.embedding_bag(i, w, o, mode=mode, padding_idx=p),
            index, weight, offsets, atol=near,
        )  # fmt: skip
    both(
        lambda nn, i, w, o, s: nn.embedding_bag(i, w, o, mode=mode, per_sample_weights=s),
        index, weight, offsets, draw(9, kind=kind), atol=near * 4,
    )  # fmt: skip


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [2, 0, 1], [1, 1, 0]])
def test_of_equal_rows_of_a_bag_the_first_gets_the_gradient(order: list[int]) -> None:
    """They shared it."""
    weight = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 5.0]])
    offsets = torch.tensor([0, 0, len(order)])

    def found(nn: Any, i: Any, w: Any, o: Any) -> tuple[Any, Any]:
        leaf = w.clone().requires_grad_()
        bags = nn.embedding_bag(i, leaf, o, mode="max")
        bags.sum().backward()
        return bags.detach(), leaf.grad

    both(found, torch.tensor(order), weight, offsets, ulps=0)


def test_one_hot() -> None:
    for index in (classes(5, count=4), classes(2, 3, count=4), classes(count=4)):
        both(lambda nn, i: nn.one_hot(i), index, ulps=0)
        both(lambda nn, i: nn.one_hot(i, 6), index, ulps=0)
    both(lambda nn, i: nn.one_hot(i, 6), classes(0, count=4), ulps=0)
    refuses(RuntimeError, "must be non-negative", lambda nn, i: nn.one_hot(i - 1), torch.tensor([0, 1]))
    refuses(RuntimeError, "smaller than num_classes", lambda nn, i: nn.one_hot(i, 2), torch.tensor([0, 2]))
    refuses(RuntimeError, "Can not infer", lambda nn, i: nn.one_hot(i[:0]), torch.tensor([0, 2]))
    refuses(RuntimeError, "LongTensor", lambda nn, i: nn.one_hot(i.int()), torch.tensor([0, 2]))


DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")


@pytest.mark.parametrize("kind", ("float32", "float64", "bfloat16"))
@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_draws_as_pytorch(name: str, kind: str) -> None:
    for shape in ((20,), (4, 5), (3, 4, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2)):
        for p in (0.0, 0.3, 1.0, 1.5):
            for inplace in (False, True):

                def run(nn: Any, x: Any, p: float = p, inplace: bool = inplace) -> Any:
                    (torch if nn is torch.nn.functional else flambeau).manual_seed(3)
                    return getattr(nn, name)(x.clone(), p, training=True, inplace=inplace)

                both(run, draw(*shape, kind=kind), ulps=2)


def test_dropout_out_of_training_and_in_the_torch_namespace() -> None:
    x = from_torch(draw(100))
    assert flambeau.nn.functional.dropout(x, 0.5, training=False) is x
    flambeau.manual_seed(0)
    once = flambeau.dropout(x, 0.5, True).tolist()
    flambeau.manual_seed(0)
    assert flambeau.nn.functional.dropout(x, 0.5).tolist() == once
    assert 20 < sum(v == 0 for v in once) < 80


@given(
    st.lists(st.integers(1, 3), max_size=2), st.integers(1, 5), st.integers(1, 6), st.integers(1, 5),
    st.sampled_from(HALF_AND_UP), st.sampled_from(("none", "bool", "float", "causal")), st.sampled_from((None, 0.3)),
)  # fmt: skip
def test_attention(
    lead: list[int], rows: int, keys: int, size: int, kind: str, mask: str, scale: Any
) -> None:
    q, k, v = (
        draw(*lead, rows, size, kind=kind),
        draw(*lead, keys, size, kind=kind, seed=1),
        draw(*lead, keys, 3, kind=kind, seed=2),
    )
    seen = None
    if mask == "bool":
        seen = draw(rows, keys, seed=5) > -1
    elif mask == "float":
        seen = draw(rows, keys, kind=kind, seed=5)
    both(
        lambda nn, q, k, v, m: nn.scaled_dot_product_attention(q, k, v, m, is_causal=mask == "causal", scale=scale),
        q, k, v, seen, ulps=4, atol=NEAR[kind] * 4,
    )  # fmt: skip


def test_attention_of_grouped_queries_and_of_nothing() -> None:
    q, k, v = draw(2, 6, 4, 5), draw(2, 2, 3, 5, seed=1), draw(2, 2, 3, 5, seed=2)
    both(lambda nn, q, k, v: nn.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, k, v, atol=1e-5)
    none = torch.zeros(4, 3, dtype=torch.bool)
    both(lambda nn, q, k, v, m: nn.scaled_dot_product_attention(q[:, :2], k, v, m), q, k, v, none, atol=1e-5)
    with pytest.raises(RuntimeError, match="attn_mask should not be set"):  # as documented, and on GPUs
        flambeau.nn.functional.scaled_dot_product_attention(
            *[from_torch(q)] * 3, flambeau.ones(4, 4), is_causal=True
        )
    refuses(RuntimeError, "same dtype", lambda nn, q: nn.scaled_dot_product_attention(q, q.double(), q), q)
    both(lambda nn, q, k, v: nn.scaled_dot_product_attention(q, k, v), q, k, v)


def test_attention_with_dropout_draws_as_pytorch() -> None:
    def run(nn: Any, q: Any, m: Any) -> Any:
        (torch if nn is torch.nn.functional else flambeau).manual_seed(5)
        return nn.scaled_dot_product_attention(q, q, q, m, dropout_p=0.4)

    q = draw(2, 3, 4, 5)
    for mask in (None, draw(4, 4) > -1, draw(4, 4)):
        both(run, q, mask, atol=1e-5)


def test_tf32_rounds_attention() -> None:
    q, k, v = (from_torch(draw(1, 2, 16, 8, seed=s)) for s in range(3))
    attend = flambeau.nn.functional.scaled_dot_product_attention
    exact = attend(q.double(), k.double(), v.double())
    for profile, rounds in (("a100", True), ("v100", False)):
        with flambeau.virtual(devices=1, profile=profile):
            ours = attend(q.cuda(), k.cuda(), v.cuda()).cpu().double()
        assert (float((ours - exact).abs().max()) > 1e-4) == rounds


@pytest.mark.parametrize("need_weights", (False, True))
@pytest.mark.parametrize("extra", (False, True))
def test_multi_head_attention(need_weights: bool, extra: bool) -> None:
    size, heads = 6, 2
    q, k = draw(4, 3, size), draw(5, 3, size, seed=1)
    weights = [
        draw(3 * size, size, seed=2),
        draw(3 * size, seed=3),
        draw(size, size, seed=4),
        draw(size, seed=5),
    ]
    biases = [draw(1, 1, size, seed=6), draw(1, 1, size, seed=7)] if extra else [None, None]
    masks: tuple[tuple[Any, Any], ...] = (
        (None, None), (draw(3, 5, seed=8) > 1, None), (None, draw(4, 5, seed=9)), (None, draw(4, 5, seed=9) > 1),
        (draw(3, 5, seed=8) > 1, draw(6, 4, 5, seed=9)),
    )  # fmt: skip

    def run(
        nn: Any, q: Any, k: Any, w: Any, b: Any, ow: Any, ob: Any, bk: Any, bv: Any, pad: Any, mask: Any
    ) -> Any:
        out, seen = nn.multi_head_attention_forward(
            q, k, k, size, heads, w, b, bk, bv, extra, 0.0, ow, ob, key_padding_mask=pad, need_weights=need_weights,
            attn_mask=mask, average_attn_weights=not extra,
        )  # fmt: skip
        return (out, seen) if need_weights else out

    for padding, mask in masks:
        both(run, q, k, *weights, *biases, padding, mask, atol=1e-3)
    if not extra:
        both(run, q[:, 0], k[:, 0], *weights, *biases, None, None, atol=1e-4)


def test_names_that_are_lacking_say_so() -> None:
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        flambeau.nn.bundled  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'bundled'"):
        flambeau.bundled  # noqa: B018
