"""torch.backends: flags beside PyTorch's, what is remembered for programs, libraries and their workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch as oracle

import flambeau
from flambeau.backends import cuda, cudnn, library_flags
from flambeau.core.flags import flags

NAMES = ("matmul_allow_tf32", "float32_matmul_precision", "float16_reductions", "bfloat16_reductions",
         "float16_accumulation", "cudnn_allow_tf32", "rnn_allow_tf32", "precisions", "cudnn_enabled", "cudnn_benchmark", "cudnn_benchmark_limit",
         "cudnn_deterministic")  # fmt: skip


@pytest.fixture(autouse=True)
def flags_as_they_were() -> Iterator[None]:
    before = {name: getattr(flags, name) for name in NAMES}
    matmul = oracle.backends.cuda.matmul
    told = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    yield
    for name, value in before.items():
        setattr(flags, name, value)
    matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = told


def outcome(call: Callable[[], Any]) -> tuple[type, str]:
    try:
        return (bool, str(call()))
    except Exception as error:
        return (type(error), str(error))


REDUCTIONS = "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"
VALUES = [
    False, True, (False, False), [True], (False,), (False, True), (True, False), [], (True, True, True), (1,),
    (True, 0), "x", None, 1,
]  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_reductions_are_remembered_as_pytorch_does(name: str, value: Any) -> None:
    def put(module: Any) -> tuple[Any, Any]:
        matmul = module.backends.cuda.matmul
        setattr(matmul, name, value)
        return getattr(matmul, name), getattr(matmul, f"{name}_split_k")

    assert outcome(lambda: put(flambeau)) == outcome(lambda: put(oracle))


def test_a_pair_that_is_refused_changes_nothing() -> None:
    cuda.matmul.allow_fp16_reduced_precision_reduction = False
    with pytest.raises(TypeError, match="expects a bool for allow_splitk"):
        cuda.matmul.allow_fp16_reduced_precision_reduction = (True, 1)
    assert cuda.matmul.allow_fp16_reduced_precision_reduction is False


def test_accumulation() -> None:
    assert cuda.matmul.allow_fp16_accumulation is oracle.backends.cuda.matmul.allow_fp16_accumulation is False
    cuda.matmul.allow_fp16_accumulation = True
    assert cuda.matmul.allow_fp16_accumulation is True
    with pytest.raises(RuntimeError, match="set_allow_fp16_accumulation_cublas expects a bool, but got int"):
        cuda.matmul.allow_fp16_accumulation = 1


def test_precision_is_tf32_by_another_name() -> None:
    matmul = cuda.matmul
    assert matmul.allow_tf32 and matmul.fp32_precision == "tf32"
    matmul.fp32_precision = "ieee"
    assert not matmul.allow_tf32 and flambeau.get_float32_matmul_precision() == "highest"
    matmul.allow_tf32 = True
    assert matmul.fp32_precision == "tf32" and flambeau.get_float32_matmul_precision() == "high"
    for bad in ("bf16", "", None, True):
        for flagged in (matmul, cudnn, cudnn.conv, cudnn.rnn, flambeau.backends):
            with pytest.raises(RuntimeError, match=f"Unknown precision: {bad}"):
                flagged.fp32_precision = bad
    assert matmul.fp32_precision == "tf32"


PRECISIONS = [
    "",
    "backends.fp32_precision = 'ieee'",
    "backends.fp32_precision = 'tf32'",
    "backends.cudnn.fp32_precision = 'ieee'",
    "backends.cudnn.fp32_precision = 'ieee'; backends.fp32_precision = 'tf32'",
    "backends.fp32_precision = 'tf32'; backends.cudnn.conv.fp32_precision = 'ieee'",
    "backends.cudnn.fp32_precision = 'tf32'; backends.cudnn.rnn.fp32_precision = 'ieee'",
    "backends.fp32_precision = 'ieee'; backends.cuda.matmul.fp32_precision = 'tf32'",
    "backends.cuda.matmul.fp32_precision = 'ieee'; backends.cuda.matmul.fp32_precision = 'none'",
    "backends.cudnn.conv.fp32_precision = 'ieee'; backends.cudnn.conv.fp32_precision = 'tf32'",
]


@pytest.mark.parametrize("program", PRECISIONS)
def test_the_narrowest_precision_holds_as_in_pytorch(program: str) -> None:
    """Where nobody has said it is TF32, as in the documentation; PyTorch's products start from float32."""
    oracle.backends.cudnn.conv.fp32_precision = oracle.backends.cudnn.rnn.fp32_precision = "none"
    wanted = precisions(oracle, program)
    for i in (1, 3, 4):
        wanted[i] = wanted[i].replace("none", "tf32")
    assert precisions(flambeau, program) == wanted
    assert [flags.matmul_allow_tf32, flags.cudnn_allow_tf32, flags.rnn_allow_tf32] == [
        found == "tf32" for found in (wanted[1], *wanted[3:])
    ]


def precisions(module: Any, program: str) -> list[str]:
    exec(program, {"backends": module.backends})
    named = module.backends.cudnn
    return [
        scope.fp32_precision
        for scope in (module.backends, module.backends.cuda.matmul, named, named.conv, named.rnn)
    ]


def test_convolutions_and_recurrent_layers_by_themselves() -> None:
    with flambeau.virtual(devices=1):
        x = flambeau.full((1, 4, 8), 1 + 2**-12, device="cuda")
        one = flambeau.ones(1, 4, 1, device="cuda")
        cell = flambeau.nn.RNN(8, 1, nonlinearity="relu", batch_first=True, bias=False).cuda()
        with flambeau.no_grad():
            for weight in cell.parameters():
                weight.fill_(1)

        def found() -> list[bool]:
            convolved = flambeau.nn.functional.conv1d(x, one)
            return [bool(y[0, 0, 0] > exact) for y, exact in ((convolved, 4), (cell(x)[0], 8))]

        assert found() == [False, False], "TF32 has ten bits"
        cudnn.conv.fp32_precision = "ieee"
        assert found() == [True, False]
        with pytest.raises(RuntimeError, match="cuDNN conv and cuDNN RNN have different TF32 flags"):
            assert cudnn.allow_tf32
        assert "cuDNN off, its recurrent layers on" in flambeau.doctor()
        cudnn.rnn.fp32_precision = "ieee"
        assert found() == [True, True] and not cudnn.allow_tf32
        cudnn.allow_tf32 = True
        assert found() == [False, False] and cudnn.conv.fp32_precision == "tf32"


def test_unknown_attributes_of_backends_are_refused() -> None:
    for scope in (flambeau.backends, cudnn, cudnn.conv, cudnn.rnn):
        with pytest.raises(AttributeError, match="fp33_precision"):
            scope.fp33_precision = "tf32"


def test_precision_reaches_the_kernels() -> None:
    with flambeau.virtual(devices=1):
        a = flambeau.full((8, 8), 1 + 2**-12, device="cuda")
        assert (a @ a)[0, 0] == 8, "TF32 has ten bits"
        cuda.matmul.fp32_precision = "ieee"
        assert (a @ a)[0, 0] > 8


def test_unknown_attributes_of_products_are_refused() -> None:
    assert isinstance(cuda.matmul, cuda.cuBLASModule)
    for name in ("allow_tf33", "allow_fp16_reduced_precision_reduction_split_k"):
        with pytest.raises(AttributeError, match=f"Unknown attribute {name}"):
            setattr(cuda.matmul, name, True)


# -- cuDNN ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["enabled", "benchmark", "deterministic"])
def test_flags_of_cudnn_refuse_what_pytorch_refuses(name: str) -> None:
    ours, theirs = (
        outcome(lambda m=m: setattr(m, name, "x")) for m in (cudnn, oracle.backends.cudnn)
    )  # fmt: skip
    assert ours == theirs
    assert getattr(cudnn, name) is getattr(oracle.backends.cudnn, name)


def test_benchmark_limit() -> None:
    assert cudnn.benchmark_limit == 10
    cudnn.benchmark_limit = 3
    assert cudnn.benchmark_limit == 3
    with pytest.raises(RuntimeError, match="set_benchmark_limit_cudnn expects an int, but got bool"):
        cudnn.benchmark_limit = True


def said() -> tuple[Any, ...]:
    return cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, cudnn.allow_tf32


def test_flags_as_a_context_have_the_defaults_of_pytorch() -> None:
    cudnn.benchmark, cudnn.allow_tf32 = True, False
    before = said()
    with cudnn.flags():
        assert said() == (False, False, 10, False, True)
        with cudnn.flags(enabled=True, deterministic=True, fp32_precision="ieee"):
            assert said() == (True, False, 10, True, False)
    assert said() == before
    with pytest.raises(ZeroDivisionError), cudnn.flags():
        raise ZeroDivisionError
    assert said() == before


def test_flags_that_are_refused_change_nothing() -> None:
    before = said()
    with pytest.raises(RuntimeError, match="set_allow_tf32_cudnn expects a bool, but got str"):
        cudnn.set_flags(_enabled=False, _allow_tf32="no")
    with pytest.raises(RuntimeError, match="Unknown precision"):
        cudnn.set_flags(_enabled=False, _fp32_precision="x")
    with (
        pytest.raises(flambeau.NotSupportedError, match="depthwise_kernel"),
        cudnn.flags(depthwise_kernel="cudnn"),
    ):
        pass
    assert said() == before
    assert cudnn.set_flags(_enabled=False)[:5] == before and not cudnn.enabled


def test_what_cudnn_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    with flambeau.virtual(devices=1):
        x = flambeau.ones(2, device="cuda")
        monkeypatch.setitem(vars(cudnn), "cudnn_version", lambda: None)
        with pytest.warns(UserWarning, match="cuDNN library not found"):
            assert not cudnn.is_acceptable(x)
        monkeypatch.setitem(vars(cudnn), "cudnn_version", lambda: 91002)
        assert cudnn.is_acceptable(x) and cudnn.is_acceptable(x.half())
        assert not cudnn.is_acceptable(x.long()) and not cudnn.is_acceptable(x.cpu())
        cudnn.enabled = False
        assert not cudnn.is_acceptable(x)


# -- libraries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "used", "others"),
    [
        (cuda.preferred_blas_library, "cublaslt", ["cublas", "ck", "hipblas"]),
        (cuda.preferred_linalg_library, "cusolver", ["magma"]),
    ],
    ids=["blas", "linalg"],
)
def test_libraries_are_what_they_are(ask: Any, used: str, others: list[str]) -> None:
    theirs = getattr(oracle.backends.cuda, ask.__name__)
    found = ask()
    assert found.name.lower() == used and ask(used) is ask("default") is ask(found) is found
    assert str(found) in map(str, type(theirs()).__members__.values())
    for bad in ("foo", 3):
        assert outcome(lambda bad=bad: ask(bad)) == outcome(lambda bad=bad: theirs(bad))
    for other in others:
        with pytest.raises(flambeau.NotSupportedError, match="is not there: real GPUs compute by"):
            ask(other)


def test_workspace() -> None:
    size = cuda.cublas_workspace_size()
    assert size == cuda.cublaslt_workspace_size(size) == cuda.blas_workspace_size() == 32 << 20
    for call in (cuda.cublas_workspace_size, cuda.cublaslt_workspace_size, cuda.blas_workspace_size):
        with pytest.raises(flambeau.NotSupportedError, match="has 33554432 bytes a stream, not 4096"):
            call(4096)
    assert cuda.blas_workspace_size(backend="cublaslt") == size
    for backend in ("foo", 3, "ck"):
        theirs = outcome(lambda backend=backend: oracle.backends.cuda.blas_workspace_size(backend=backend))
        assert outcome(lambda backend=backend: cuda.blas_workspace_size(backend=backend)) == theirs
    assert library_flags.product_workspace() == size


def test_plan_caches_are_of_public_classes() -> None:
    with flambeau.virtual(devices=2):
        caches = cuda.cufft_plan_cache
        assert isinstance(caches, cuda.cuFFTPlanCacheManager) and type(caches[1]) is cuda.cuFFTPlanCache
        assert caches[1].device_index == 1
        cuda.cuFFTPlanCache(1).max_size = 7
        assert caches[1].max_size == 7 and caches.max_size == 4096
        with pytest.raises(AttributeError, match="Unknown attribute capacity"):
            _ = caches[0].capacity


def test_apple_s_gpus_are_asked_for_and_are_not_there() -> None:
    assert flambeau.backends.mps.is_available() is flambeau.backends.mps.is_built() is False


def test_the_fast_path_of_attention_is_remembered() -> None:
    ours, theirs = flambeau.backends.mha, oracle.backends.mha
    assert ours.get_fastpath_enabled() is theirs.get_fastpath_enabled() is True
    try:
        ours.set_fastpath_enabled(False)
        assert ours.get_fastpath_enabled() is False
    finally:
        ours.set_fastpath_enabled(True)
