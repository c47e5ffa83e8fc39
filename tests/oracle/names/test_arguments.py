"""What may stand as an argument, and what is said of one that may not: PyTorch's parser, call by call."""

from __future__ import annotations

import inspect
import math
import pickle
import re
import warnings
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from support import same, torch

import flambeau

BOTH = (torch, flambeau)


def outcome(run: Any, module: Any, *args: Any) -> tuple[str, Any]:
    """("ok", the result) or (the error's type and text up to the list of signatures, None)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "ok", run(module, *args)
        except Exception as error:
            return f"{type(error).__name__}: {str(error).partition(' received an invalid')[0]}", None


def agree(run: Any, *args: Any) -> None:
    (said, want), (ours, found) = (outcome(run, module, *args) for module in BOTH)
    assert ours == said
    if said == "ok":
        same(found, want, 2)


# -- ints: NumPy's, and tensors of one -------------------------------------------------------------------------------

INTS = {
    "sum": lambda m, i: m.ones(2, 3).sum(i(1)),
    "sum of two": lambda m, i: m.ones(2, 3).sum((i(0), 1)),
    "mean": lambda m, i: m.ones(2, 3).mean(dim=[i(0)]),
    "all": lambda m, i: m.ones(2, 3).all(i(0)),
    "max": lambda m, i: m.ones(2, 3).max(i(1))[0],
    "argmax": lambda m, i: m.ones(2, 3).argmax(i(1)),
    "cumsum": lambda m, i: m.ones(2, 3).cumsum(i(1)),
    "norm": lambda m, i: m.ones(2, 3).norm(2, i(1)),
    "var": lambda m, i: m.ones(2, 3).var(i(1)),
    "logsumexp": lambda m, i: m.logsumexp(m.ones(2, 3), i(1)),
    "softmax": lambda m, i: m.softmax(m.ones(2, 3), i(1)),
    "functional.softmax": lambda m, i: m.nn.functional.softmax(m.ones(2, 3), i(1)),
    "topk": lambda m, i: m.topk(m.arange(3), i(2))[0],
    "kthvalue": lambda m, i: m.kthvalue(m.arange(3), i(2))[0],
    "narrow": lambda m, i: m.ones(2, 3).narrow(1, i(1), i(2)),
    "diag": lambda m, i: m.diag(m.ones(2), i(1)),
    "diag_embed": lambda m, i: m.diag_embed(m.ones(2), i(1)),
    "diagflat": lambda m, i: m.diagflat(m.ones(2), i(1)),
    "bincount": lambda m, i: m.bincount(m.tensor([1]), minlength=i(3)),
    "histc": lambda m, i: m.histc(m.ones(3), i(2)),
    "matrix_power": lambda m, i: m.ones(3, 3).matrix_power(i(2)),
    "conv1d": lambda m, i: m.nn.functional.conv1d(m.ones(1, 1, 4), m.ones(1, 1, 2), stride=i(2)),
    "avg_pool1d": lambda m, i: m.nn.functional.avg_pool1d(m.ones(1, 1, 4), i(2)),
    "adaptive_avg_pool1d": lambda m, i: m.nn.functional.adaptive_avg_pool1d(m.ones(1, 1, 4), i(2)),
    "fft": lambda m, i: m.fft.fft(m.ones(4), i(2)).real,
    "fft along": lambda m, i: m.fft.fft(m.ones(4), dim=i(0)).real,
    "fftfreq": lambda m, i: m.fft.fftfreq(i(4)),
    "hann_window": lambda m, i: m.hann_window(i(4)),
    "view": lambda m, i: m.ones(4).view(i(2), -1),
    "expand": lambda m, i: m.ones(3).expand(i(2), 3),
    "zeros": lambda m, i: m.zeros(i(2), 3),
    "cat": lambda m, i: m.cat([m.ones(2, 1), m.ones(2, 1)], i(1)),
    "transpose": lambda m, i: m.ones(2, 3).transpose(i(0), 1).contiguous(),
    "sort": lambda m, i: m.ones(2, 3).sort(i(0))[1],
    "gather": lambda m, i: m.ones(2, 3).gather(i(1), m.tensor([[1]])),
    "index_fill_": lambda m, i: m.ones(2, 3).index_fill_(i(1), m.tensor([1]), i(4)),
    "quantile": lambda m, i: m.ones(2, 3).quantile(0.5, i(1)),
    "group_norm": lambda m, i: m.nn.functional.group_norm(m.arange(4.0).view(1, 2, 2), i(2)),
    "nll_loss": lambda m, i: m.nn.functional.nll_loss(m.ones(2, 3), m.tensor([0, 1]), ignore_index=i(0)),
    "normal of a size": lambda m, i: m.normal(i(2), i(0), (3,)),
}


@pytest.mark.parametrize("run", INTS.values(), ids=INTS)
@pytest.mark.parametrize("kind", ["int", "numpy", "tensor"])
def test_ints(run: Any, kind: str) -> None:
    def as_kind(module: Any) -> Any:
        return {"int": int, "numpy": np.int64, "tensor": module.tensor}[kind]

    agree(lambda m: run(m, as_kind(m)))


@pytest.mark.parametrize("value", [True, 1.0, "x", None], ids=str)
def test_what_is_no_int(value: Any) -> None:
    for run in (
        lambda m: m.ones(2, 3).cumsum(value),
        lambda m: m.softmax(m.ones(2, 3), value),
        lambda m: m.hann_window(value),
        lambda m: m.ones(3, 3).matrix_power(value),
    ):
        kinds = [outcome(run, module)[0].partition(":")[0] for module in BOTH]
        assert kinds[0] == kinds[1] == "TypeError"


@pytest.mark.parametrize("name", ["flip", "broadcast_to", "expand_copy", "permute", "tile"])
def test_a_tensor_of_several_is_no_int(name: str) -> None:
    for value in ([[1, 2]], [1.5]):
        for module in BOTH:
            with pytest.raises(TypeError):
                getattr(module, name)(module.ones(2, 3), (module.tensor(value),))


def test_tensordot_over_as_many_as_a_tensor_says() -> None:
    agree(lambda m: m.tensordot(m.ones(2, 3), m.ones(3, 2), m.tensor(1)))


# -- all and any over no dimensions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all", "any"])
@pytest.mark.parametrize("kind", ["uint8", "bool", "float32", "complex64"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_all_over_no_dimensions_is_each_element_by_itself(name: str, kind: str, keepdim: bool) -> None:
    for shape in ((2, 3), (), (0, 2)):
        agree(
            lambda m, shape=shape: getattr(m, name)(
                m.ones(shape).to(getattr(m, kind)), dim=(), keepdim=keepdim
            )
        )
    agree(lambda m: getattr(m.tensor([[1, 0], [0, 2]]).t(), name)(()))


# -- NumPy's names ---------------------------------------------------------------------------------------------------

NAMED = {
    "abs": lambda m: m.abs(x=m.ones(2)),
    "exp": lambda m: m.exp(a=m.ones(2)),
    "exp of two": lambda m: m.exp(x=m.ones(2), input=m.ones(2)),
    "add": lambda m: m.add(x1=m.ones(2), x2=m.ones(2)),
    "add mixed": lambda m: m.add(x=m.ones(2), other=3),
    "maximum": lambda m: m.maximum(x1=m.ones(2), x2=m.zeros(2)),
    "where": lambda m: m.where(condition=m.tensor([True, False]), input=m.ones(2), x2=m.zeros(2)),
    "clamp": lambda m: m.clamp(x=m.ones(2), min=2),
    "sum": lambda m: m.sum(a=m.ones(2, 3), axis=1, keepdims=True),
    "sort": lambda m: m.sort(x=m.tensor([2, 1]))[0],
    "reshape": lambda m: m.reshape(a=m.ones(4), shape=(2, 2)),
    "cat": lambda m: m.cat(tensors=[m.ones(2)], axis=0),
    # of the parser, where the documentation says otherwise
    "cholesky_inverse": lambda m: m.cholesky_inverse(input=2 * m.eye(2)),
    "linalg.norm": lambda m: m.linalg.norm(input=m.ones(2)),
    "linalg.vector_norm": lambda m: m.linalg.vector_norm(input=m.ones(2)),
    "linalg.eigvalsh": lambda m: m.linalg.eigvalsh(input=m.eye(2)),
    "linalg.lstsq": lambda m: m.linalg.lstsq(m.eye(2), b=m.eye(2)).solution,
    "linalg.inv": lambda m: m.linalg.inv(A=m.eye(2)),
    "relu_": lambda m: m.relu_(input=-m.ones(2)),
    "clamp_": lambda m: m.clamp_(x=m.ones(2), max=0),
    "hsplit": lambda m: m.hsplit(m.ones(4), sections=2)[0],
    "Tensor.vsplit": lambda m: m.ones(4, 1).vsplit(indices=(1,))[0],
    "Tensor.split": lambda m: m.ones(4).split(split_size=2)[0],
    "tensor_split": lambda m: m.tensor_split(m.ones(4), tensor_indices_or_sections=m.tensor(2))[0],
    "swapaxes": lambda m: m.ones(2, 3).swapaxes(axis0=0, axis1=1),
    "heaviside": lambda m: m.ones(2).heaviside(values=m.ones(2)),
    "ones_like": lambda m: m.ones_like(x=m.zeros(2)),
    "max of two": lambda m: m.max(x1=m.ones(2), x2=m.zeros(2)),
    "square into": lambda m: m.square(m.full((2,), 3.0), out=m.empty(0)),
    "diff into": lambda m: m.diff(m.arange(4.0), out=m.empty(0)),
    "addmm_": lambda m: m.ones(2, 2).addmm_(mat1=m.ones(2, 2), mat2=m.ones(2, 2)),
    "addmv_": lambda m: m.ones(2).addmv_(mat=m.ones(2, 2), vec=m.ones(2)),
    "addr_": lambda m: m.ones(2, 2).addr_(vec1=m.ones(2), vec2=m.ones(2)),
    "baddbmm_": lambda m: m.ones(1, 2, 2).baddbmm_(batch1=m.ones(1, 2, 2), batch2=m.ones(1, 2, 2)),
    "isin into": lambda m: m.isin(m.tensor([1, 2]), m.tensor([2]), out=m.empty(0, dtype=m.bool)),
    "msort into": lambda m: m.msort(m.tensor([[2.0], [1.0]]), out=m.empty(0)),
    "rsub": lambda m: m.rsub(m.ones(2), 3, 2),
    "isin": lambda m: m.isin(element=3, test_elements=m.tensor([3])),
    "special.airy_ai": lambda m: m.special.airy_ai(x=m.zeros(2)),
    "special.zeta": lambda m: m.special.zeta(input=m.full((2,), 2.0), other=m.ones(2)),
    "special.hermite_polynomial_h": lambda m: m.special.hermite_polynomial_h(x=m.ones(2), n=2),
}


@pytest.mark.parametrize("run", NAMED.values(), ids=NAMED)
def test_names_of_numpy(run: Any) -> None:
    (said, want), (ours, found) = (outcome(run, module) for module in BOTH)
    assert ours.partition(":")[0] == said.partition(":")[0]
    if said == "ok":
        same(found, want, 1, strides=False)


def parser_names(call: Any) -> list[str]:
    """What PyTorch's parser calls the arguments of a function that has but one signature, from what it refuses."""
    names: list[str] = []
    args: list[Any] = []
    right = {"Tensor": torch.ones(3, 3), "int": 1, "tuple": (1, 1), "bool": False, "Number": 1, "float": 1.0}
    while len(args) < 7:
        said = outcome(lambda _: call(*args, object()), torch)[0]
        found = re.search(rf"argument '(\w+)' \(position {len(args) + 1}\) must be (\w+)", said)
        if found is None:
            break
        names.append(found[1])
        args.append(right.get(found[2], "x"))
    return names


# Theirs: numbers of arguments, not names; or of a signature beside the one that is documented.
UNLIKE = {"rrelu", "repeat_interleave", "one_hot"}


@pytest.mark.parametrize("room", ["", "linalg", "fft", "special", "nn.functional"])
def test_every_name_of_an_argument_is_taken(room: str) -> None:
    """A call that names all arguments is not refused for a name. 600 functions."""
    theirs, ours = (attrgetter(room)(m) if room else m for m in BOTH)
    asked = 0
    for name in sorted({*dir(theirs)} & {*dir(ours)} - UNLIKE):
        define = getattr(theirs, name)
        if name[0] == "_" or not inspect.isbuiltin(define) or isinstance(define, type):
            continue
        here = getattr(ours, name)
        for argument in parser_names(define):
            said = outcome(lambda _, f=here, a=argument: f(**{a: object()}), flambeau)[0]
            assert "unexpected keyword" not in said, f"{room} {name}({argument}=)"
            asked += 1
    assert asked > 10 or room == "nn.functional"


def test_every_name_of_a_methods_argument_is_taken() -> None:
    """And NumPy's for it. 400 names."""
    also = {"dim": "axis", "keepdim": "keepdims", "other": "x2"}
    asked = 0
    for name in sorted({*dir(torch.Tensor)} & {*dir(flambeau.Tensor)}):
        define = getattr(torch.Tensor, name)
        if name[0] == "_" or not inspect.ismethoddescriptor(define):
            continue
        for argument in parser_names(lambda *args, f=define: f(torch.ones(3, 3), *args)):
            for named in {argument, also.get(argument, argument)}:
                theirs, ours = (
                    outcome(lambda m, n=name, a=named: getattr(m.ones(3, 3), n)(**{a: object()}), m)[0]
                    for m in BOTH
                )
                assert "unexpected keyword" in theirs or "unexpected keyword" not in ours, f"{name}({named}=)"
                asked += 1
    assert asked > 400


# -- arguments of wrong types ----------------------------------------------------------------------------------------

WRONG = {
    "sum of a list": lambda m: m.sum([1.0, 2.0]),
    "sum of an array": lambda m: m.sum(np.ones(3)),
    "argmax of a number": lambda m: m.argmax(3),
    "sort of an array": lambda m: m.sort(np.ones(3)),
    "cumsum of a list": lambda m: m.cumsum([1, 2], 0),
    "softmax of an array": lambda m: m.softmax(np.ones(3), 0),
    "matmul of an array": lambda m: m.matmul(np.ones(3), m.ones(3)),
    "matmul with an array": lambda m: m.matmul(m.ones(3), np.ones(3)),
    "addmm of numbers": lambda m: m.addmm(m.ones(2, 2), 2, 1),
    "gather of a list": lambda m: m.gather([1], 0, m.tensor([1])),
    "bmm of numbers": lambda m: m.bmm(1, 2),
    "flip of an array": lambda m: m.flip(np.ones(2), (0,)),
    "adjoint of a number": lambda m: m.adjoint(1.5),
    "inverse of an array": lambda m: m.linalg.inv(np.eye(3)),
    "squeeze of a list": lambda m: m.squeeze([1]),
    "topk of a list": lambda m: m.topk([1, 2], 1),
    "amax of a list": lambda m: m.amax([1.0]),
    "linear of an array": lambda m: m.nn.functional.linear(np.ones((2, 3)), m.ones(4, 3)),
    "mm of an array": lambda m: m.ones(2, 2).mm(np.ones((2, 2))),
    "dot of a list": lambda m: m.ones(2).dot([1, 2]),
    "method addmm of numbers": lambda m: m.ones(2, 2).addmm(1, 2),
    "isreal of a number": lambda m: m.isreal(3),
    "numel of a number": lambda m: m.numel(3),
    "corrcoef of a number": lambda m: m.corrcoef(3),
    "cov with a number": lambda m: m.cov(m.ones(2), fweights=3),
    "gradient of a number": lambda m: m.gradient(math.inf),
    "poisson of a number": lambda m: m.poisson(3),
    "embedding of a number": lambda m: m.nn.functional.pixel_shuffle(5, 2),
    "linear with a number": lambda m: m.nn.functional.linear(m.ones(2), m.ones(2, 2), 3),
    "cosine_similarity with a number": lambda m: m.nn.functional.cosine_similarity(m.ones(2), 1e30),
    "layer_norm over a number": lambda m: m.nn.functional.layer_norm(m.ones(3), 5),
    "layer_norm over a bool": lambda m: m.nn.functional.layer_norm(m.ones(3), (True,)),
    "rms_norm over a number": lambda m: m.nn.functional.rms_norm(m.ones(3), 5),
    "multi_margin_loss with a number": lambda m: m.nn.functional.multi_margin_loss(m.ones(2, 3), 10, 2),
    "multilabel_margin_loss with a tuple": lambda m: m.nn.functional.multilabel_margin_loss(
        m.ones(2, 3), (1,)
    ),
    "conv2d with a bool": lambda m: m.nn.functional.conv2d(m.ones(1, 1, 3, 3), m.ones(1, 1, 2, 2), True),
    "hfftn of a bool": lambda m: m.fft.hfftn(m.ones(2, 3), True, -2),
    "a tensor as dim": lambda m: m.ones(2).scatter_add(m.tensor(0.5), m.tensor([0]), m.ones(1)),
    "a tensor as generator": lambda m: m.ones(2).cauchy_(generator=m.ones(2)),
    "a word as reduction": lambda m: m.ones(2).scatter_reduce(0, m.tensor([0]), m.ones(1), 5),
    "a wrong type before a wrong shape": lambda m: m.addbmm(m.ones(2), m.ones(2), m.ones(2), alpha=[1]),
    "a tuple as a weight": lambda m: m.rms_norm(m.ones(2, 3), (3,), weight=(1,)),
    "is_neg of a number": lambda m: m.is_neg(0),
    "mvlgamma by a float": lambda m: m.mvlgamma(m.ones(2), 1.0),
    "isclose by a number": lambda m: m.isclose(m.ones(2), m.ones(2), equal_nan=3),
    "kthvalue of a fraction": lambda m: m.ones(3).kthvalue(1.5),
    "bags of a vector": lambda m: m.nn.functional.embedding_bag(
        m.tensor([0]), m.ones(3), m.tensor([0]), padding_idx=2
    ),
    "embedding of a number's rows": lambda m: m.nn.functional.embedding(m.tensor([0]), m.ones(()), 0),
    "split_with_sizes of a number": lambda m: m.split_with_sizes(m.ones(2, 3), 0),
    "pooled to a word": lambda m: m.adaptive_avg_pool1d(m.ones(2, 3), "x"),
}


@pytest.mark.parametrize("run", WRONG.values(), ids=WRONG)
def test_the_parsers_words(run: Any) -> None:
    if "conv2d" in str(outcome(run, torch)):
        assert outcome(run, flambeau)[0].startswith("TypeError: conv2d()")
    else:
        agree(run)


UNLIKE_WORDS = {
    "embedding of a number": lambda m: m.nn.functional.embedding(5, m.ones(2, 2)),
    "chain_matmul of numbers": lambda m: m.chain_matmul(3, 4),
    "max_unpool by a number": lambda m: m.nn.functional.max_unpool1d(m.ones(1, 1, 3), 3, 2),
    "batch_norm by a number": lambda m: m.nn.functional.batch_norm(m.ones(2, 3), math.inf, m.ones(3)),
    "relu of a number": lambda m: m.nn.functional.relu(3),
    "cross_entropy of a list": lambda m: m.nn.functional.cross_entropy([1], [2]),
    "smooth_l1_loss with a number": lambda m: m.nn.functional.smooth_l1_loss(m.ones(2), 3),
    "softmax of a number": lambda m: m.nn.functional.softmax(3, 0),
}


@pytest.mark.parametrize("run", UNLIKE_WORDS.values(), ids=UNLIKE_WORDS)
def test_wrong_types_raise_a_parsers_error(run: Any) -> None:
    """PyTorch has other words for these, or raises AttributeError."""
    assert re.match(
        r"TypeError: \w+\(\): argument '\w+' \(position \d\) must be Tensor, not ", outcome(run, flambeau)[0]
    )


def test_formats_of_memory_are_named() -> None:
    for wrong in (
        lambda m: m.ones(2).contiguous(memory_format=m.ones(2)),
        lambda m: m.ones(2).byte(m.contiguous_format),
    ):
        assert all(outcome(wrong, module)[0].startswith("TypeError") for module in BOTH)


def test_elu_in_place_takes_scales_by_position() -> None:
    for scales in ((1.0, True), (1.5, 2.0, 0.7), (1,)):
        agree(lambda m, scales=scales: m.nn.functional.elu_(m.tensor([-1.0, 2.0, -0.5]), *scales))


def test_a_dtype_that_is_none() -> None:
    for module in BOTH:
        with pytest.raises(TypeError):
            module.sum(module.ones(2), dtype=3)


def test_errors_of_a_callback_stay_its_own() -> None:
    def fails(x: float) -> float:
        raise AttributeError("mine")

    with pytest.raises(AttributeError, match="mine"):
        flambeau.ones(2).apply_(fails)
    with pytest.raises(AttributeError, match="mine"):
        flambeau.sum(flambeau.ones(2), (Failing(),))


class Failing:
    def __index__(self) -> int:
        raise AttributeError("mine")


# -- the order of the first versions ---------------------------------------------------------------------------------

EARLY = {
    "add": lambda m, a, b: m.add(a, 2, b),
    "add out": lambda m, a, b: m.add(a, 2.5, b, out=m.empty(2, 2)),
    "add method": lambda m, a, b: a.add(2, b),
    "add_": lambda m, a, b: a.add_(-0.5, b),
    "add_ of a tensor": lambda m, a, b: a.add_(m.tensor(2.0), b),
    "sub": lambda m, a, b: m.sub(a, 2, b),
    "sub_": lambda m, a, b: a.sub_(2, b),
    "addcmul": lambda m, a, b: m.addcmul(a, 2, a, b),
    "addcmul_": lambda m, a, b: a.addcmul_(2, b, b),
    "addcdiv_": lambda m, a, b: a.addcdiv_(-2, b, b),
    "two tensors and a number": lambda m, a, b: m.add(a, b, 2),
    "three numbers": lambda m, a, b: a.add_(1, 2),
    "no tensors": lambda m, a, b: a.addcmul(2, a, 3),
}


@pytest.mark.parametrize("run", EARLY.values(), ids=EARLY)
def test_numbers_before_tensors(run: Any) -> None:
    agree(lambda m: run(m, m.full((2, 2), 3.0), m.full((2, 2), 2.0)))


def test_numbers_before_tensors_warn() -> None:
    with pytest.warns(
        UserWarning, match=r"This overload of add_ is deprecated:\n\tadd_\(Number alpha, Tensor other\)"
    ):
        flambeau.ones(2).add_(2, flambeau.ones(2))


def test_warnings_are_at_the_programs_line() -> None:
    x = flambeau.ones(2)
    for run in (
        lambda: flambeau.addcmul(x, 2, x, x),
        lambda: flambeau.where(flambeau.ones(2, dtype=flambeau.uint8), x, x),
        lambda: flambeau.std(flambeau.ones(1)),
    ):
        with pytest.warns(UserWarning) as told:
            run()
        assert told[0].filename == __file__


# -- the types of several results ------------------------------------------------------------------------------------


def test_results_that_went_to_out_have_a_type_of_their_own() -> None:
    for module in BOTH:
        x, into = module.rand(2, 3), (module.empty(0), module.empty(0, dtype=module.int64))
        result = module.max(x, 1, out=into)
        assert type(result) is module.return_types.max_out
        assert repr(result).startswith("torch.return_types.max_out(\nvalues=tensor(")
        assert type(module.max(x, 1)) is module.return_types.max
        assert (result.n_fields, result.n_sequence_fields, result.n_unnamed_fields) == (2, 2, 0)
        assert type(result).__match_args__ == ("values", "indices")
        assert result.values is into[0]
        assert type(pickle.loads(pickle.dumps(result))) is type(result)


def test_every_type_has_one_for_out() -> None:
    lacking = {"histogramdd"}
    for name in dir(torch.return_types):
        kind = getattr(torch.return_types, name)
        if (
            isinstance(kind, type)
            and name[0] != "_"
            and hasattr(kind, "n_fields")
            and name.removesuffix("_out") not in lacking
        ):
            assert getattr(flambeau.return_types, name).__name__ == kind.__name__


@pytest.mark.parametrize(
    "run",
    [
        lambda m, out: m.sort(m.ones(2, 3), out=out("float32", "int64")),
        lambda m, out: m.topk(m.ones(2, 3), 1, out=out("float32", "int64")),
        lambda m, out: m.cummax(m.ones(2, 3), 1, out=out("float32", "int64")),
        lambda m, out: m.median(m.ones(2, 3), 1, out=out("float32", "int64")),
        lambda m, out: m.aminmax(m.ones(2, 3), out=out("float32", "float32")),
        lambda m, out: m.frexp(m.ones(2, 3), out=out("float32", "int32")),
        lambda m, out: m.slogdet(m.ones(2, 2), out=out("float32", "float32")),
        lambda m, out: m.qr(m.ones(2, 2), out=out("float32", "float32")),
        lambda m, out: m.linalg.svd(m.ones(2, 2), out=out("float32", "float32", "float32")),
        lambda m, out: m.linalg.inv_ex(m.eye(2), out=out("float32", "int32")),
        lambda m, out: m.linalg.lu_factor(m.eye(2), out=out("float32", "int32")),
    ],
)
def test_types_of_results(run: Any) -> None:
    names = []
    for module in BOTH:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run(
                module, lambda *kinds, m=module: tuple(m.empty(0, dtype=getattr(m, k)) for k in kinds)
            )
        names.append(type(result).__name__)
    assert names[0] == names[1]


def test_cosines_of_two_dtypes_are_of_the_wider() -> None:
    for one, two in (("float16", "float32"), ("float32", "float64"), ("bfloat16", "float16")):
        results = [
            m.nn.functional.cosine_similarity(
                m.ones(2, 3).to(getattr(m, one)), m.ones(2, 3).to(getattr(m, two))
            ).dtype
            for m in BOTH
        ]
        assert repr(results[0]) == repr(results[1])


def test_the_name_of_a_singular_matrix() -> None:
    errors = []
    for module in BOTH:
        with pytest.raises(module.linalg.LinAlgError) as caught:
            module.linalg.inv(module.zeros(2, 2))
        errors.append(caught.value)
        assert type(pickle.loads(pickle.dumps(caught.value))) is module.linalg.LinAlgError
    assert repr(errors[0]) == repr(errors[1])


# -- bounds, and layouts of results -----------------------------------------------------------------------------------


def test_bounds_of_a_number_and_a_tensor_of_none_dimensions() -> None:
    for run in (
        lambda m: m.arange(5.0).clamp(m.tensor(1.0), 3),
        lambda m: m.arange(5).clamp(1, m.tensor(3.5)),
        lambda m: m.arange(5).clamp(m.tensor([1]), 3),
        lambda m: m.arange(5.0).clamp_(m.tensor(1), 3),
    ):
        kinds = [outcome(run, module) for module in BOTH]
        assert kinds[0][0].partition(":")[0] == kinds[1][0].partition(":")[0]
        if kinds[0][0] == "ok":
            same(kinds[1][1], kinds[0][1])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax_is_contiguous_of_every_layout(name: str, dim: int) -> None:
    for view in (
        lambda x: x.permute(2, 0, 1),
        lambda x: x.transpose(1, 2),
        lambda x: x[:, :, ::2],
        lambda x: x[:, :1].expand(2, 3, 4),
    ):

        def run(m: Any, view: Any = view) -> Any:
            x = (m.arange(24.0).reshape(2, 3, 4) / 8).requires_grad_()
            result = getattr(m, name)(view(x), dim)
            (slope,) = m.autograd.grad(result[..., 0].sum(), x)
            return result.detach(), slope

        (want, slope), (found, ours) = run(torch), run(flambeau)
        same(found, want, 16)
        np.testing.assert_allclose(ours.numpy(), slope.numpy(), 1e-4, 1e-6)


# -- texts -----------------------------------------------------------------------------------------------------------

REFUSED = {
    "dot": lambda m, x: x.dot(x),
    "vdot": lambda m, x: m.vdot(x, x),
    "inner": lambda m, x: m.inner(x, x),
    "mv": lambda m, x: m.mv(x.expand(3, 3), x),
    "mm": lambda m, x: x.expand(3, 3).mm(x.expand(3, 3)),
    "bmm": lambda m, x: x.expand(2, 3, 3).bmm(x.expand(2, 3, 3)),
}


@pytest.mark.parametrize("kind", ["bool", "uint16"])
@pytest.mark.parametrize("run", REFUSED.values(), ids=REFUSED)
def test_products_that_are_refused(run: Any, kind: str) -> None:
    agree(lambda m: run(m, m.ones(3).to(getattr(m, kind))))


@pytest.mark.parametrize("ndim", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["uint8", "int64", "int32", "bool"])
def test_targets_of_bytes(ndim: int, kind: str) -> None:
    shape = (2, 3, 2, 2, 2)[:ndim]
    agree(
        lambda m: m.nn.functional.nll_loss(
            m.ones(shape), m.zeros((2, 2, 2, 2)[: ndim - 1]).to(getattr(m, kind))
        )
    )


# -- calls that skip the parser -------------------------------------------------------------------------------------

WARM = {
    "sum": [((), {}), ((1,), {}), ((), {"dim": 1}), (((0, 1),), {"keepdim": True}), ((1, True), {})],
    "mean": [((), {}), ((-1,), {}), (((0, 1),), {})],
    "argmax": [((), {}), ((1,), {}), ((), {"dim": 0, "keepdim": True})],
    "amax": [((), {}), (((0, 1),), {})],
    "any": [((), {}), ((1, False), {})],
    "permute": [((1, 0), {}), (((1, 0),), {})],
    "view": [((6,), {}), (((3, 2),), {})],
}
MISTAKES = [
    ((1.0,), {}), ((True,), {}), ((1, 1), {}), ((1,), {"keepdim": 1}), ((), {"keepdim": True}), (((0, True),), {}),
    (((0.0, 1),), {}), ((1, None), {}), (("0",), {}), ((...,), {}), ((), {"dims": 1.0}), ((1,), {"dim": 1}), ((5,), {}),
    ((0, False, 3), {}), (([0, 1],), {}), ((), {"axis": 1}), ((), {"axis": 1, "keepdims": True}), ((), {"size": (3, 2)}),
    ((), {"nonsense": 1}),
]  # fmt: skip


@pytest.mark.parametrize("name", WARM)
def test_wrong_arguments_after_warm_calls_are_pytorchs_errors(name: str) -> None:
    def call(module: Any, args: Any, named: Any) -> Any:
        return getattr(module.arange(6.0).reshape(2, 3), name)(*args, **named)

    for args, named in [*WARM[name], *MISTAKES, *WARM[name]]:
        (said, want), (ours, found) = (outcome(call, module, args, named) for module in BOTH)
        assert ours.partition(":")[0] == said.partition(":")[0], (args, named, said, ours)
        if said == "ok":
            same(found, want, 2)


def test_warm_calls_do_not_use_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    from flambeau.tensor.arguments.arg_errors import Parser

    def refuse(self: Any, args: Any, given: Any) -> None:
        raise AssertionError(f"{self.name} was compared")

    monkeypatch.setattr(Parser, "mistake", refuse)
    x = flambeau.ones(2, 3)
    for name, calls in WARM.items():
        for args, named in calls:
            getattr(x, name)(*args, **named)
