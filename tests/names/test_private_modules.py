"""Modules of PyTorch's that libraries import although their names begin with an underscore, beside PyTorch."""

from __future__ import annotations

import gc
import importlib
import pickle
import random
import typing

import numpy
import pytest
import torch

import flambeau


def each(name: str) -> list[typing.Any]:
    """Return a module of Flambeau and PyTorch's own."""
    return [importlib.import_module(f"{root}.{name}") for root in ("flambeau", "torch")]


def test_seeds_of_workers_equal_pytorchs() -> None:
    ours, theirs = each("utils.data._utils.worker")
    draw = random.Random(5)
    for _ in range(50):
        seed, worker = draw.getrandbits(64), draw.randrange(100)
        assert ours._generate_state(seed, worker) == theirs._generate_state(seed, worker)


@pytest.mark.parametrize("name", ["WeakIdKeyDictionary", "WeakTensorKeyDictionary"])
def test_weak_dictionaries_forget_collected_keys(name: str) -> None:
    results = []
    for module, m in zip(each("utils.weak"), (flambeau, torch), strict=True):
        keys = [m.zeros(2), m.zeros(2), m.ones(1)]
        table = getattr(module, name)({key: index for index, key in enumerate(keys)})
        seen = [len(table), keys[1] in table, m.zeros(2) in table, table[keys[2]], sorted(table.values())]
        del keys[1]
        gc.collect()
        seen += [len(table), sorted(table.values()), table.pop(keys[0]), len(table), len(table.copy())]
        with pytest.raises(KeyError):
            del table[keys[0]]
        results.append([*seen, isinstance(table, typing.MutableMapping), next(iter(table)) is keys[1]])
    assert results[0] == results[1]


def test_weak_references_compare_by_identity() -> None:
    for module, m in zip(each("utils.weak"), (flambeau, torch), strict=True):
        x, y = m.zeros(2), m.zeros(2)
        assert module.WeakIdRef(x) == module.WeakIdRef(x)
        assert not module.WeakIdRef(x) == module.WeakIdRef(y)  # noqa: SIM201
        assert hash(module.WeakIdRef(x)) == id(x)
        assert module.TensorWeakRef(x)() is x
        with pytest.raises(AssertionError, match=r"expected torch\.Tensor"):
            module.TensorWeakRef(3)


def test_parts_of_texts_equal_pytorchs() -> None:
    texts = []
    for module, m in zip(each("_tensor_str"), (flambeau, torch), strict=True):
        x = m.arange(40.0).reshape(2, 20) / 7
        with module.printoptions(precision=2, linewidth=50):
            inside = [module._tensor_str(x, 8), module._str(x), module.PRINT_OPTS.linewidth]
        outside = [
            module._tensor_str(m.zeros(0), 3),
            module.PRINT_OPTS.precision,
            repr(m.get_default_dtype()),
        ]
        suffixes = [
            module._add_suffixes("Index([1, 2]", ["dim_size=3", "is_sorted=True"], 6, force_newline=new)
            for new in (False, True)
        ]
        long = module._add_suffixes("x" * 70, ["dim_size=3", "is_sorted=True"], 6, False)
        texts.append(
            [
                inside,
                outside,
                suffixes,
                long,
                x.__repr__(tensor_contents="..."),
                module._str_intern(x, tensor_contents="!"),
            ]
        )
    assert texts[0] == texts[1]


def test_print_options_are_set_by_attribute() -> None:
    for module, m in zip(each("_tensor_str"), (flambeau, torch), strict=True):
        saved = module.PRINT_OPTS.precision
        module.PRINT_OPTS.precision = 1
        text = repr(m.tensor([0.123]))
        module.PRINT_OPTS.precision = saved
        assert text == "tensor([0.1])"
        assert repr(m.tensor([0.123])) == "tensor([0.1230])"
    with pytest.raises(AttributeError, match="no print option"):
        flambeau._tensor_str.PRINT_OPTS.colour = 1


def test_managers_of_contextlib_decorate() -> None:
    for module in each("utils._contextlib"):
        seen = []

        class Manager(module._NoParamDecoratorContextManager):
            def __enter__(self) -> None:
                seen.append("in")  # noqa: B023

            def __exit__(self, *error: object) -> None:
                seen.append("out")  # noqa: B023

        @Manager
        def one(x: int) -> int:
            return x + 1

        @Manager()
        def two() -> typing.Iterator[int]:
            yield one(1)

        assert list(two()) == [2]
        assert seen == ["in", "in", "out", "out", "in", "out"]


@pytest.mark.parametrize("place", ["cuda:1", 3, "cuda", None, "cpu", "mps"])
@pytest.mark.parametrize("allow_cpu", [False, True])
def test_indices_of_devices_equal_pytorchs(place: object, allow_cpu: bool) -> None:
    def outcome(module: typing.Any) -> object:
        try:
            return module._get_device_index(place, allow_cpu=allow_cpu)
        except ValueError as error:
            return type(error)

    ours, theirs = each("_utils")
    assert outcome(importlib.import_module("flambeau._utils")) == outcome(
        importlib.import_module("torch.cuda._utils")
    )
    assert ours._element_size(flambeau.float16) == theirs._element_size(torch.float16)


def test_storages_and_tensors_have_their_modules() -> None:
    assert flambeau.storage.UntypedStorage is flambeau.UntypedStorage
    assert flambeau._tensor.Tensor is flambeau.Tensor
    data = pickle.dumps(flambeau.arange(3))
    assert pickle.loads(data).tolist() == [0, 1, 2]


def test_questions_of_functorch_have_pytorchs_answers() -> None:
    for module, m in zip(each("_C._functorch"), (flambeau, torch), strict=True):
        x = m.zeros(2)
        assert not module.is_batchedtensor(x)
        assert not module.is_functorch_wrapped_tensor(x)
        assert module.maybe_get_level(x) == -1
        assert not m._C._are_functorch_transforms_active()
        assert not m._C._is_torch_function_mode_enabled()
        with m.overrides.TorchFunctionMode():
            assert m._C._is_torch_function_mode_enabled()
        assert m._C._is_alias_of(x, x[1:])
        assert not m._C._is_alias_of(x, m.zeros(2))
        assert m._C._get_default_device() == "cpu"
    with pytest.raises(flambeau.NotSupportedError, match="no batched tensors"):
        flambeau._C._functorch._add_batch_dim(flambeau.zeros(2), 0, 1)


@pytest.mark.parametrize("name", ["nn.Module", "nn.Linear", "nn.L1Loss", "nn.LSTM", "optim.Optimizer"])
def test_annotations_need_no_names(name: str) -> None:
    """Libraries evaluate the annotations of a module that they hold with names of their own."""
    kind: typing.Any = flambeau
    for part in name.split("."):
        kind = getattr(kind, part)

    class Holder:
        def __call__(self) -> None: ...

    holder = Holder()
    holder.__annotations__ = object.__getattribute__(kind.__new__(kind), "__annotations__")
    typing.get_type_hints(holder, globalns={}, localns={})


NAMED = [
    "uint1", "uint4", "uint7", "int1", "int7", "qint8", "quint8", "qint32", "quint4x2", "float8_e8m0fnu", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float4_e2m1fn_x2",
]  # fmt: skip
USES = [
    lambda kind: flambeau.zeros(2, dtype=kind),
    lambda kind: flambeau.empty(2, dtype=kind, device="meta"),
    lambda kind: flambeau.tensor([1], dtype=kind),
    lambda kind: flambeau.zeros(3).to(kind),
    lambda kind: flambeau.arange(3, dtype=kind),
    lambda kind: flambeau.zeros(3).sum(dtype=kind),
    lambda kind: flambeau.zeros(4, dtype=flambeau.uint8).view(kind),
    lambda kind: flambeau.promote_types(kind, flambeau.float32),
    lambda kind: flambeau.frombuffer(bytearray(b"1234"), dtype=kind),
]


@pytest.mark.parametrize("name", NAMED)
def test_dtypes_without_tensors_are_values(name: str) -> None:
    ours, theirs = getattr(flambeau, name), getattr(torch, name)
    assert (repr(ours), ours.itemsize, ours.is_floating_point) == (
        repr(theirs),
        theirs.itemsize,
        theirs.is_floating_point,
    )
    assert isinstance(ours, flambeau.dtype)
    assert ours is not flambeau.uint8
    assert pickle.loads(pickle.dumps(ours)) is ours
    for use in USES:
        with pytest.raises(flambeau.NotSupportedError, match="name only"):
            use(ours)


def test_members_that_programs_add_ask_nobody() -> None:
    """fastai replaces `Tensor.as_subclass` and keeps the function by another name."""
    results = []
    for m in (flambeau, torch):
        original = m.Tensor.as_subclass
        asked = []

        class Own(m.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                asked.append(func.__name__)  # noqa: B023
                return super().__torch_function__(func, types, args, kwargs or {})

        def as_subclass(self, kind):
            return self._original(kind)

        m.Tensor._original, m.Tensor.as_subclass = original, as_subclass
        try:
            own = original(m.zeros(2), Own)
            results.append([type(own.as_subclass(m.Tensor)) is m.Tensor, type(own.clone()) is Own, asked])
        finally:
            m.Tensor.as_subclass = original
            del m.Tensor._original
    assert results[0] == results[1]


def test_iterators_take_loaders_of_programs() -> None:
    """fastai gives PyTorch's iterators a loader that defines what they ask for."""
    loaders = []
    for m in (flambeau, torch):
        names = importlib.import_module(f"{m.__name__}.utils.data.dataloader")

        class Loader:
            _auto_collation, drop_last, in_order, generator, prefetch_factor = False, False, True, None, 2
            _IterableDataset_len_called, pin_memory, num_workers, timeout = None, False, 0, 0
            persistent_workers, worker_init_fn, multiprocessing_context = False, None, None
            pin_memory_device = ""
            dataset_kind = _dataset_kind = names._DatasetKind.Iterable
            _index_sampler = range(5)

            def __init__(self) -> None:
                self.dataset = self

            def __iter__(self):
                return iter("abc")

            def collate_fn(self, value):
                return value + "!"

            def _get_shared_seed(self) -> None: ...

        loaders.append(list(names._SingleProcessDataLoaderIter(Loader())))
    assert loaders[0] == loaders[1] == ["a!", "b!", "c!"]


def test_parts_of_normal_distributions_equal_pytorchs() -> None:
    results = []
    for module, m in zip(each("distributions.multivariate_normal"), (flambeau, torch), strict=True):
        draw = numpy.random.default_rng(3)
        root = m.tensor(draw.normal(size=(2, 3, 3)))
        vectors = m.tensor(draw.normal(size=(2, 3)))
        precision = root @ root.mT + m.eye(3, dtype=m.float64)
        factor = module._precision_to_scale_tril(precision)
        parts = [factor, module._batch_mv(factor, vectors), module._batch_mahalanobis(factor, vectors)]
        results.append([part.numpy() for part in parts])
    for ours, theirs in zip(*results, strict=True):
        numpy.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_private_initializations_equal_pytorchs() -> None:
    drawn = []
    for init, m in zip(each("nn.init"), (flambeau, torch), strict=True):
        m.manual_seed(7)
        x = m.empty(3, 5, requires_grad=True)
        assert init._no_grad_uniform_(x, -2, 3) is x and x.is_leaf
        values = [x.tolist()]
        for name, arguments in (
            ("_no_grad_normal_", (1, 2)),
            ("_no_grad_trunc_normal_", (0, 1, -1, 1)),
            ("_no_grad_fill_", (4.5,)),
            ("_no_grad_zero_", ()),
        ):
            values.append(getattr(init, name)(x, *arguments).tolist())
        drawn.append(values)
    assert drawn[0] == drawn[1]
