"""Autocast against PyTorch's: on the CPU call by call, for CUDA by the lists; its state, caches and decorators."""

from __future__ import annotations

import gc
import sys
import threading
import warnings

import pytest
from support import from_torch, to_torch, torch

import flambeau
from flambeau.ops.op import table
from flambeau.tensor import autocast

BF16 = torch.bfloat16
SQUARE, VECTOR, IMAGE = (4, 4), (4,), (1, 2, 4, 4)


def shapes(*given):
    return given


# name -> (shapes of the inputs, call): each runs with float32 and with lower inputs, under autocast.
CALLS = {
    "matmul": (shapes(SQUARE, SQUARE), lambda m, a, b: a @ b),
    "mm": (shapes(SQUARE, SQUARE), lambda m, a, b: m.mm(a, b)),
    "bmm": (shapes((2, 3, 4), (2, 4, 3)), lambda m, a, b: m.bmm(a, b)),
    "baddbmm": (shapes((2, 3, 3), (2, 3, 4), (2, 4, 3)), lambda m, a, b, c: m.baddbmm(a, b, c)),
    "addmm": (shapes(SQUARE, SQUARE, SQUARE), lambda m, a, b, c: m.addmm(a, b, c)),
    "addbmm": (shapes((3, 3), (2, 3, 4), (2, 4, 3)), lambda m, a, b, c: m.addbmm(a, b, c)),
    "mv": (shapes(SQUARE, VECTOR), lambda m, a, b: m.mv(a, b)),
    "dot": (shapes(VECTOR, VECTOR), lambda m, a, b: m.dot(a, b)),
    "multi_dot": (shapes(SQUARE, SQUARE, SQUARE), lambda m, a, b, c: m.linalg.multi_dot([a, b, c])),
    "vecdot": (shapes(SQUARE, SQUARE), lambda m, a, b: m.linalg.vecdot(a, b)),
    "linear": (shapes((3, 2, 4), (5, 4), (5,)), lambda m, *a: m.nn.functional.linear(*a)),
    "conv2d": (shapes(IMAGE, (3, 2, 2, 2), (3,)), lambda m, *a: m.nn.functional.conv2d(*a)),
    "conv_transpose1d": (shapes((1, 2, 5), (2, 3, 2)), lambda m, *a: m.nn.functional.conv_transpose1d(*a)),
    "prelu": (shapes(SQUARE, (1,)), lambda m, a, b: m.nn.functional.prelu(a, b)),
    "attention": (
        shapes((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
        lambda m, *a: m.nn.functional.scaled_dot_product_attention(*a),
    ),
    "exp": (shapes(SQUARE), lambda m, a: a.exp()),
    "pow": (shapes(SQUARE), lambda m, a: a**2),
    "softmax": (shapes(SQUARE), lambda m, a: a.softmax(1)),
    "log_softmax": (shapes(SQUARE), lambda m, a: m.log_softmax(a, 1)),
    "sum": (shapes(SQUARE), lambda m, a: a.sum()),
    "mean": (shapes(SQUARE), lambda m, a: a.mean()),
    "prod": (shapes(VECTOR), lambda m, a: a.prod()),
    "norm": (shapes(SQUARE), lambda m, a: m.linalg.norm(a)),
    "layer_norm": (shapes(SQUARE, VECTOR), lambda m, a, b: m.nn.functional.layer_norm(a, (4,), b)),
    "gelu": (shapes(SQUARE), lambda m, a: m.nn.functional.gelu(a)),
    "mse_loss": (shapes(SQUARE, SQUARE), lambda m, a, b: m.nn.functional.mse_loss(a, b)),
    "l1_loss": (shapes(SQUARE, SQUARE), lambda m, a, b: m.nn.functional.l1_loss(a, b)),
    "smooth_l1_loss": (
        shapes(SQUARE, SQUARE),
        lambda m, a, b: m.nn.functional.smooth_l1_loss(a, b, beta=0.0),
    ),
    "huber_loss": (shapes(SQUARE, SQUARE), lambda m, a, b: m.nn.functional.huber_loss(a, b)),
    "kl_div": (shapes(SQUARE, SQUARE), lambda m, a, b: m.nn.functional.kl_div(a, b, reduction="sum")),
    "bce_logits": (
        shapes(SQUARE, SQUARE, VECTOR),
        lambda m, a, b, c: m.nn.functional.binary_cross_entropy_with_logits(a, b, pos_weight=c),
    ),
    "poisson_nll_loss": (shapes(SQUARE, SQUARE), lambda m, a, b: m.nn.functional.poisson_nll_loss(a, b)),
    "soft_margin_loss": (shapes(SQUARE, SQUARE), lambda m, a, b: m.nn.functional.soft_margin_loss(a, b)),
    "hinge_embedding_loss": (
        shapes(SQUARE, SQUARE),
        lambda m, a, b: m.nn.functional.hinge_embedding_loss(a, b),
    ),
    "margin_ranking_loss": (
        shapes(VECTOR, VECTOR, VECTOR),
        lambda m, *a: m.nn.functional.margin_ranking_loss(*a),
    ),
    "triplet_margin_loss": (
        shapes(SQUARE, SQUARE, SQUARE),
        lambda m, *a: m.nn.functional.triplet_margin_loss(*a),
    ),
    "cosine_similarity": (shapes(SQUARE, SQUARE), lambda m, a, b: m.cosine_similarity(a, b)),
    "cross_entropy": (shapes((4, 4), (4, 4)), lambda m, a, b: m.nn.functional.cross_entropy(a, b)),
    "cdist": (shapes(SQUARE, SQUARE), lambda m, a, b: m.cdist(a, b)),
    "trace": (shapes(SQUARE), lambda m, a: a.trace()),
    "quantile": (shapes(VECTOR), lambda m, a: a.quantile(0.5)),
    "inv": (shapes(SQUARE), lambda m, a: m.linalg.inv(a)),
    "rfft": (shapes((8,)), lambda m, a: m.fft.rfft(a)),
    "reflection_pad": (shapes((1, 4, 4)), lambda m, a: m.nn.functional.pad(a, (1, 1), mode="reflect")),
    "constant_pad": (shapes((1, 4, 4)), lambda m, a: m.nn.functional.pad(a, (1, 1))),
    "max_pool3d": (shapes((1, 1, 4, 4, 4)), lambda m, a: m.nn.functional.max_pool3d(a, 2)),
    "avg_pool3d": (shapes((1, 1, 4, 4, 4)), lambda m, a: m.nn.functional.avg_pool3d(a, 2)),
    "avg_pool2d": (shapes(IMAGE), lambda m, a: m.nn.functional.avg_pool2d(a, 2)),
    "addcmul": (shapes(SQUARE, SQUARE, SQUARE), lambda m, a, b, c: m.addcmul(a, b, c)),
    "tensordot": (shapes((2, 3, 4), (4, 3, 2)), lambda m, a, b: m.tensordot(a, b, 1)),
    "bilinear": (shapes(SQUARE, SQUARE, (3, 4, 4)), lambda m, *a: m.nn.functional.bilinear(*a)),
    "add": (shapes(SQUARE, SQUARE), lambda m, a, b: a + b),
    "cat": (shapes(SQUARE, SQUARE), lambda m, a, b: m.cat([a, b])),
    "relu": (shapes(SQUARE), lambda m, a: a.relu()),
    "interpolate": (shapes(IMAGE), lambda m, a: m.nn.functional.interpolate(a, scale_factor=2)),
}
# What `torch.autocast("cuda")` runs in float16, and in float32, by PyTorch's documentation.
LOWER = (
    "matmul mm bmm baddbmm addmm addbmm mv multi_dot vecdot linear conv2d conv_transpose1d prelu attention"
)
WIDE = (
    "exp pow softmax log_softmax sum prod norm layer_norm mse_loss l1_loss smooth_l1_loss huber_loss kl_div bce_logits "
    "poisson_nll_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss triplet_margin_loss cosine_similarity "
    "cdist interpolate cross_entropy"
)
# Without autocast's help these refuse float16.
ONLY_WIDE = {"inv", "quantile", "rfft"}


def inputs(name, kind=torch.float32):
    random = torch.Generator().manual_seed(3)
    return [(torch.rand(s, generator=random) + 0.1).to(kind) for s in CALLS[name][0]]


@pytest.mark.parametrize("kind", [torch.float32, BF16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "name", sorted(set(CALLS) - {"bilinear"})
)  # PyTorch rounds its parts, not its result
def test_on_the_cpu_every_call_gives_pytorchs_dtype_and_values(name, kind):
    run, given = CALLS[name][1], inputs(name, kind)
    ours = [from_torch(t) for t in given]
    try:
        with torch.autocast("cpu"):
            theirs = run(torch, *given)
    except (RuntimeError, NotImplementedError) as refused:
        with pytest.raises(type(refused)), flambeau.autocast("cpu"):
            run(flambeau, *ours)
        return
    with flambeau.autocast("cpu"):
        found = to_torch(run(flambeau, *ours))
    assert found.dtype is theirs.dtype
    tolerance = 3e-2 if theirs.dtype is BF16 else 1e-4
    assert torch.allclose(found, theirs, rtol=tolerance, atol=tolerance)


@pytest.fixture
def gpu():
    with flambeau.virtual(devices=1):
        yield


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in CALLS
        for kind in ("float32", "float16")
        if kind == "float32" or name not in ONLY_WIDE
    ],
)
def test_on_cuda_the_lists_decide(gpu, name, kind):
    ours = [from_torch(t).to("cuda", getattr(flambeau, kind)) for t in inputs(name)]
    with flambeau.autocast("cuda"):
        found = CALLS[name][1](flambeau, *ours).dtype
    listed = "float16" if name in LOWER.split() else "float32" if name in WIDE.split() else kind
    wanted = getattr(flambeau, listed)
    assert found in (wanted, wanted.to_complex())


@pytest.mark.parametrize("name", ["addcmul", "dot", "tensordot", "bilinear"])
def test_on_cuda_some_take_the_widest(gpu, name):
    ours = [from_torch(t).cuda() for t in inputs(name)]
    ours[0] = ours[0].half()
    with flambeau.autocast("cuda"):
        assert CALLS[name][1](flambeau, *ours).dtype is flambeau.float32


# Of PyTorch's operators on the lists, those that go by the name of another one here.
SAME = {
    "matmul": "mm bmm mv chain_matmul linalg_multi_dot",
    "addmm": "addmv addbmm baddbmm _addmm_activation",
    "convolution": (
        "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d "
        "cudnn_convolution cudnn_convolution_transpose"
    ),
    "scaled_dot_product_attention": "_scaled_dot_product_flash_attention _native_multi_head_attention",
    "interpolate": (
        "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d "
        "upsample_nearest2d upsample_nearest3d upsample_trilinear3d"
    ),
    "layer_norm": "native_layer_norm",
    "norm": "frobenius_norm linalg_vector_norm linalg_matrix_norm nuclear_norm",
    "linalg_cross": "cross",
    "grid_sample": "grid_sampler",
    "nll_loss": "nll_loss2d",
    "lstm": "_thnn_fused_lstm_cell _cudnn_rnn",  # the latter in PyTorch's builds with CUDA
    "gru": "_thnn_fused_gru_cell",
}
# Those that are functions of several operators here, which name their rule where they call `cast` or `call_cast`.
OF_SEVERAL = (
    "einsum linear addr linalg_vecdot lstm gru lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell l1_loss kl_div "
    "poisson_nll_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss soft_margin_loss "
    "triplet_margin_loss cosine_similarity pdist dist cdist renorm bilinear dot vdot tensordot"
)


def test_every_operator_of_pytorchs_list_for_cuda_is_on_ours():
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    every = torch._C._dispatch_get_all_op_names()
    theirs = {n[6:].split(".")[0] for n in every if n.startswith("aten::") and has(n, "AutocastCUDA")}
    named = {name for name, op in table.items() if op.autocast.cuda} | set(OF_SEVERAL.split())
    ours = named | {other for name, others in SAME.items() if name in named for other in others.split()}
    assert theirs - ours == set()


def test_cuda_refuses_binary_cross_entropy_in_pytorchs_words(gpu):
    x = flambeau.full((3,), 0.5, device="cuda")
    with flambeau.autocast("cuda"), pytest.raises(RuntimeError, match="are unsafe to autocast"):
        flambeau.nn.functional.binary_cross_entropy(x, x)


def test_nothing_is_cast_in_place_or_into_out():
    a, out = flambeau.rand(3, 3), flambeau.empty(3, 3)
    with flambeau.autocast("cpu"):
        assert flambeau.mm(a, a, out=out).dtype is flambeau.float32
        assert a.addmm_(a, a).dtype in (flambeau.float32,)
    assert out.dtype is flambeau.float32


def test_it_nests_and_is_left_as_it_was():
    a = flambeau.rand(3, 3)
    half = flambeau.bfloat16
    with flambeau.autocast("cpu"):
        assert flambeau.is_autocast_enabled("cpu") and not flambeau.is_autocast_enabled()
        assert (a @ a).dtype is half
        with flambeau.autocast("cpu", enabled=False):
            assert (a @ a).dtype is flambeau.float32
            with flambeau.autocast("cpu", dtype=flambeau.float16):
                assert (a @ a).dtype is flambeau.float16
                assert flambeau.get_autocast_dtype("cpu") is flambeau.float16
        assert (a @ a).dtype is half
        with pytest.raises(ZeroDivisionError), flambeau.autocast("cpu", enabled=False):
            raise ZeroDivisionError
        assert (a @ a).dtype is half
    assert (a @ a).dtype is flambeau.float32
    assert not flambeau.is_autocast_enabled("cpu")
    flambeau.set_autocast_enabled("cpu", True)
    assert (a @ a).dtype is half
    flambeau.set_autocast_enabled("cpu", False)


def test_other_threads_do_not_autocast():
    a, found = flambeau.rand(3, 3), []
    with flambeau.autocast("cpu"):
        thread = threading.Thread(target=lambda: found.append((a @ a).dtype))
        thread.start()
        thread.join()
    assert found == [flambeau.float32]


def test_the_decorator_and_a_reused_context():
    context = flambeau.autocast("cpu")

    @context
    def product(a, again):
        return product(a, False) if again else a @ a

    a = flambeau.rand(3, 3)
    assert product(a, True).dtype is flambeau.bfloat16
    assert (a @ a).dtype is flambeau.float32
    with pytest.raises(TypeError, match="requires a callable"):
        context(3)


def twins():
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    ours = flambeau.nn.Sequential(flambeau.nn.Linear(6, 8), flambeau.nn.Tanh(), flambeau.nn.Linear(8, 3))
    ours.load_state_dict({k: from_torch(v) for k, v in theirs.state_dict().items()})
    return theirs, ours, torch.rand(5, 6)


def test_gradients_are_pytorchs_and_of_the_weights_dtype():
    theirs, ours, x = twins()
    with torch.autocast("cpu"):
        loss = torch.nn.functional.cross_entropy(theirs(x), torch.tensor([0, 1, 2, 0, 1]))
    loss.backward()
    with flambeau.autocast("cpu"):
        found = flambeau.nn.functional.cross_entropy(ours(from_torch(x)), flambeau.tensor([0, 1, 2, 0, 1]))
    found.backward()
    assert found.item() == pytest.approx(loss.item(), rel=2e-2)
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert q.grad.dtype is flambeau.float32
        assert torch.allclose(to_torch(q.grad), p.grad, rtol=5e-2, atol=5e-3)


def names_of_nodes(t):
    """Every node behind a tensor, once."""
    seen, stack = [], [t.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.append(node)
            stack += [n for n, _ in node.next_functions]
    return [node.name() for node in seen]


def casts(ours, cache):
    x, w = flambeau.rand(3, 3), flambeau.rand(3, 3).requires_grad_()
    with flambeau.autocast("cpu", cache_enabled=cache):
        y = x @ w + x @ w
    return sum("Copy" in name for name in names_of_nodes(y))


def test_a_weight_is_cast_once_for_all_its_uses():
    assert casts(flambeau, True) == 1
    assert casts(flambeau, False) == 2


def test_a_cast_weight_is_not_kept_across_its_changes():
    w = flambeau.rand(3, 3).requires_grad_()
    with flambeau.autocast("cpu"):
        with flambeau.no_grad():
            before = w @ w
            w.zero_()
        after = w @ w
    assert before.abs().sum() > 0 and after.abs().sum() == 0
    after.sum().backward()
    assert w.grad is not None


def test_no_cast_weight_is_left_behind(gpu):
    w = flambeau.rand(64, 64, device="cuda", requires_grad=True)
    with flambeau.autocast("cuda"):
        w @ w
    gc.disable()
    try:
        del w
        assert flambeau.cuda.memory_allocated() == 0
    finally:
        gc.enable()


MODES = ("enable_grad", "no_grad", "inference_mode")


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
def test_a_cast_is_shared_between_the_modes_that_share_it_in_pytorch(first, second, monkeypatch):
    w = torch.ones(3, 3, requires_grad=True)
    with torch.autocast("cpu"):
        with getattr(torch, first)():
            x = w @ w
        with torch.no_grad():
            w.fill_(2)
        with getattr(torch, second)():
            shared = torch.equal(x, w @ w)  # PyTorch does not see the change
    launched, launch = [], autocast._launch
    monkeypatch.setattr(autocast, "_launch", lambda *args: launched.append(args) or launch(*args))
    v = flambeau.ones(3, 3).requires_grad_()
    with flambeau.autocast("cpu"):
        for name in (first, second):
            with getattr(flambeau, name)():
                v @ v
    kept = 2 - (first, second).count("inference_mode")
    assert len(launched) == kept - shared


def test_rnns_run_in_the_lower_precision(gpu):
    x = flambeau.rand(5, 2, 4, device="cuda")
    for kind in ("LSTM", "GRU", "RNN"):
        net = getattr(flambeau.nn, kind)(4, 3).cuda()
        with flambeau.autocast("cuda"):
            out = net(x)[0]
        assert out.dtype is flambeau.float16
        out.float().sum().backward()
        assert net.weight_ih_l0.grad.dtype is flambeau.float32
        cell = getattr(flambeau.nn, f"{kind}Cell")(4, 3).cuda()
        with flambeau.autocast("cuda"):
            state = cell(x[0])
        assert (state[0] if kind == "LSTM" else state).dtype is flambeau.float16


class Product(flambeau.autograd.Function):
    @staticmethod
    @flambeau.amp.custom_fwd(device_type="cpu")
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @flambeau.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        Product.seen = flambeau.is_autocast_enabled("cpu")
        return grad @ b.t(), a.t() @ grad


class InFloat32(flambeau.autograd.Function):
    @staticmethod
    @flambeau.amp.custom_fwd(device_type="cpu", cast_inputs=flambeau.float32)
    def forward(ctx, a):
        assert not flambeau.is_autocast_enabled("cpu")
        return a @ a

    @staticmethod
    @flambeau.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        assert not flambeau.is_autocast_enabled("cpu")
        return grad


def test_custom_functions_run_backward_as_forward():
    a = flambeau.rand(3, 3).requires_grad_()
    with flambeau.autocast("cpu"):
        out = Product.apply(a, a)
    assert out.dtype is flambeau.bfloat16
    out.sum().backward()
    assert Product.seen is True
    Product.apply(a, a).sum().backward()
    assert Product.seen is False
    with flambeau.autocast("cpu"):
        out = InFloat32.apply(a.bfloat16())
    assert out.dtype is flambeau.float32
    out.sum().backward()


def raised(module, call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call(module)
        except Exception as error:
            return type(error), str(error)
    return [(w.category, str(w.message)) for w in caught]


@pytest.mark.parametrize("which", range(4))
def test_refusals_and_warnings_are_pytorchs(which):
    calls = [
        lambda m: m.autocast(3),
        lambda m: m.autocast("cpu", dtype=m.int32),
        lambda m: m.autocast("cpu")(3),
        lambda m: m.amp.custom_fwd(device_type=3),
    ]
    assert raised(flambeau, calls[which]) == raised(torch, calls[which])


def test_the_old_names_warn_as_pytorchs(gpu):
    calls = [
        lambda m: m.cuda.amp.autocast(enabled=False),
        lambda m: m.cuda.amp.GradScaler(enabled=False),
        lambda m: m.cuda.amp.custom_fwd(len),
        lambda m: m.cuda.amp.custom_bwd(len),
    ]
    for call in calls:
        assert raised(flambeau, call) == raised(torch, call)


def test_outside_of_autocast_the_warm_path_is_the_cache_of_plans_itself(monkeypatch):
    engine = sys.modules["flambeau.tensor.call"]  # `flambeau.tensor` is the function
    a = flambeau.rand(3, 3)
    with flambeau.autocast("cpu"), flambeau.autocast("cpu", enabled=False):
        assert engine.fast_plans is engine.plans
    with flambeau.autocast("cpu"):
        assert not engine.fast_plans
        a @ a
        flambeau.backends.cuda.matmul.allow_tf32 = not flambeau.backends.cuda.matmul.allow_tf32
        assert not engine.fast_plans and (a @ a).dtype is flambeau.bfloat16
        flambeau.backends.cuda.matmul.allow_tf32 = not flambeau.backends.cuda.matmul.allow_tf32
    assert engine.fast_plans is engine.plans
    monkeypatch.setattr(autocast, "cast_inputs", None)  # so that asking the lists would fail
    assert (a @ a + a).dtype is flambeau.float32
