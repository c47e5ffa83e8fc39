"""`LinearCrossEntropyOptions`: losses and gradients of a batch in parts are PyTorch's, and the logits never exist whole."""

import random
import warnings

import pytest

import flambeau as torch
import flambeau.nn.functional as F
from flambeau import nn

oracle = pytest.importorskip("torch")
KINDS = {"float32": 1e-5, "float64": 1e-10, "bfloat16": 2e-2}


def draw(seed):
    """Return (arrays, options, settings) of a call, the arrays in float64."""
    r = random.Random(seed)
    rows, features, classes = r.randint(1, 40), r.randint(1, 9), r.randint(2, 30)
    g = torch.Generator().manual_seed(seed)
    options = {}
    if r.random() < 0.4:
        options["batch_chunk_size"] = r.randint(1, 50)
    elif r.random() < 0.6:
        options["chunking_method"] = r.choice(["aspect_ratio", "aspect_ratio:3", None, "auto"])
    options["acc_policy"] = r.choice(["auto", "accurate", "balanced", "compact"])
    options["allow_retain_graph"] = r.random() < 0.5
    arrays = {
        "input": torch.randn(rows, features, generator=g).numpy(),
        "linear_weight": torch.randn(classes, features, generator=g).numpy(),
        "linear_bias": torch.randn(classes, generator=g).numpy() if r.random() < 0.5 else None,
        "weight": torch.rand(classes, generator=g).numpy() if r.random() < 0.5 else None,
        "target": torch.randint(0, classes, (rows,), generator=g).numpy(),
    }
    if r.random() < 0.2:
        arrays["input"], arrays["target"] = arrays["input"][0], arrays["target"][0]
    settings = {"reduction": r.choice(["mean", "sum", "none"])}
    if r.random() < 0.5:
        settings["ignore_index"] = r.randrange(classes)
    return arrays, options, settings


def run(t, functional, arrays, options, settings, kind, device="cpu"):
    """Return the loss and the gradients of one library, as arrays of float64."""
    dtype = getattr(t, kind)
    given = {}
    for name, array in arrays.items():
        if array is None:
            given[name] = None
        elif name == "target":
            given[name] = t.tensor(array.tolist()).to(device)
        else:
            given[name] = t.tensor(array.tolist(), dtype=dtype).to(device)
            given[name].requires_grad_(name != "weight")
    loss = functional.linear_cross_entropy(
        **given, **settings, options=t.nn.LinearCrossEntropyOptions(**options)
    )
    loss.sum().backward()
    results = [loss.detach(), *[v.grad for name, v in given.items() if v is not None and v.requires_grad]]
    return [result.double().cpu().tolist() for result in results]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_losses_and_gradients_are_pytorchs(seed, kind):
    case = draw(seed)
    want = run(oracle, oracle.nn.functional, *case, kind)
    got = run(torch, F, *case, kind)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(
            torch.tensor(mine), torch.tensor(theirs), rtol=KINDS[kind], atol=KINDS[kind], equal_nan=True
        )


def test_parts_need_less_memory_than_all_logits():
    rows, features, classes = 256, 8, 4096
    with torch.virtual(1):
        x = torch.randn(rows, features, device="cuda", requires_grad=True)
        w = torch.randn(classes, features, device="cuda", requires_grad=True)
        target = torch.randint(0, classes, (rows,), device="cuda")
        peaks = []
        for options in (None, nn.LinearCrossEntropyOptions(batch_chunk_size=8)):
            torch.cuda.reset_peak_memory_stats()
            F.linear_cross_entropy(x, w, target, options=options).backward()
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] > rows * classes * 4 > 4 * peaks[1], peaks


def test_what_parts_do_not_support_warns_and_uses_all_logits():
    x, w, target = torch.randn(4, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 3])
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    with pytest.warns(UserWarning, match="``options`` ignored"):
        got = F.linear_cross_entropy(x, w, target, label_smoothing=0.1, options=options)
    assert torch.equal(got, F.linear_cross_entropy(x, w, target, label_smoothing=0.1))
    with warnings.catch_warnings(action="error"):
        loss = nn.LinearCrossEntropyLoss(3, 5, options=options)(x, target)
    assert loss.shape == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"acc_policy": "fast"},
        {"chunking_method": "aspect_ratio:0"},
        {"chunking_method": "rows"},
        {"batch_chunk_size": 0},
        {"acc_dtype": "int32"},
    ],
)
def test_wrong_options_raise_pytorchs_errors(wrong):
    texts = []
    for t in (oracle, torch):
        given = wrong | ({"acc_dtype": t.int32} if "acc_dtype" in wrong else {})
        with pytest.raises(ValueError) as raised:
            t.nn.LinearCrossEntropyOptions(**given)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("method", [0, 1.5, [], b"auto", True])
def test_a_chunking_method_of_another_type_is_refused(method):
    with pytest.raises(TypeError, match="chunking_method must be a str or None"):
        torch.nn.LinearCrossEntropyOptions(chunking_method=method)


def test_two_sizes_that_differ_raise():
    for t in (oracle, torch):
        options = t.nn.LinearCrossEntropyOptions(batch_chunk_size=3, chunking_method="aspect_ratio")
        with pytest.raises(ValueError, match="give different chunk sizes"):
            t.nn.functional.linear_cross_entropy(
                t.zeros(16, 2), t.zeros(8, 2), t.zeros(16, dtype=t.int64), options=options
            )
