"""Operators that programs define, their overloads and kernels. Owner of the table of them.

# Note [Kernels of operators]
Rule: A call selects one kernel, as PyTorch's dispatcher does: one for autograd if there is one; else a composite one,
which autograd sees through; else one for the tensors' kind of device, or for all kinds.
Consequences: A kernel for a kind of device runs without recording. If an input requires a gradient, its results belong
to a node that raises or warns in backward, unless `register_autograd` gave a formula. Arguments that equal their
defaults at the end of a call are not passed, so that a kernel's own defaults apply.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import Any

from flambeau._library.schema import Argument, FunctionSchema, bind_arguments, parse_schema
from flambeau.tape.mode import mode
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.nested_tensors import tensors_in
from flambeau.tensor.tensor import Tensor

Kernel = Callable[..., Any]

_DEVICES = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}  # device type -> dispatch key
_AUTOGRAD = {"cpu": "AutogradCPU", "cuda": "AutogradCUDA", "meta": "AutogradMeta"}
_KEYS = frozenset(
    {
        *_DEVICES.values(), *_AUTOGRAD.values(), "", "ADInplaceOrView", "Autograd", "AutogradMPS", "AutogradXLA",
        "AutogradXPU", "AutocastCPU", "AutocastCUDA", "BackendSelect", "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd", "FuncTorchBatched", "Functionalize",
        "HPU", "IPU", "MPS", "MTIA", "Negative", "PrivateUse1", "Python", "SparseCPU", "SparseCUDA", "XLA", "XPU",
    }
)  # fmt: skip


class Tag(Enum):
    """Properties of operators, as `torch.Tag` of PyTorch names them."""

    core = 0
    cudagraph_unsafe = 1
    data_dependent_output = 2
    dynamic_output_shape = 3
    flexible_layout = 4
    generated = 5
    inplace = 6
    inplace_view = 7
    maybe_aliasing_or_mutating = 8
    needs_contiguous_strides = 9
    needs_exact_strides = 10
    needs_fixed_stride_order = 11
    nondeterministic_bitwise = 12
    nondeterministic_seeded = 13
    out = 14
    out_variant = 15
    pointwise = 16
    pt2_compliant_tag = 17
    reduction = 18
    view_copy = 19


class _Dispatch(threading.local):
    """The kernels that this thread excludes from dispatch.

    Attributes:
        below_autograd: True if kernels for autograd are passed over.
    """

    below_autograd = False


_state = _Dispatch()


@contextmanager
def dispatch_below_autograd() -> Iterator[None]:
    """Run a block in which calls of operators pass over kernels for autograd."""
    before, _state.below_autograd = _state.below_autograd, True
    try:
        yield
    finally:
        _state.below_autograd = before


class Operator:
    """An overload of an operator as its definition and its kernels.

    Attributes:
        schema: The declaration.
        kernels: Dispatch key -> function.
        fake: The function that computes shapes of results.
        autograd: The function that records a call for backward.
        tags: Properties that the program declared.
    """

    def __init__(self, schema: FunctionSchema, tags: Sequence[Any] = ()) -> None:
        self.schema = schema
        self.kernels: dict[str, Kernel] = {}
        self.fake: Kernel | None = None
        self.autograd: Callable[[list[Any], dict[str, Any]], Any] | None = None
        self.tags = list(tags)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Check and convert arguments. See `bind_arguments`."""
        return bind_arguments(self.schema, args, kwargs)

    def call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Check the arguments and run the kernel for them."""
        positional, keywords = self.bind(args, kwargs)
        kind = device_type_of(positional, keywords)
        if not _state.below_autograd:
            kernel = self.kernels.get(_AUTOGRAD.get(kind, "")) or self.kernels.get("Autograd")
            if kernel is not None:
                return self._run(kernel, positional, keywords)
            composite = self.kernels.get("CompositeImplicitAutograd")
            if self.autograd is not None and (composite is None or self._kernel_of(kind) is not composite):
                return self.autograd(positional, keywords)
        return self.run_below_autograd(positional, keywords)

    def run_below_autograd(self, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """Run the kernel for the arguments' kind of device.

        Raises:
            NotImplementedError: If there is none.
        """
        kind = device_type_of(positional, keywords)
        kernel = self._kernel_of(kind)
        if kernel is None:
            raise NotImplementedError(
                f"Could not run '{self.schema.name}' with arguments from the '{_DEVICES.get(kind, kind.upper())}' "
                "backend. This could be because the operator doesn't exist for this backend. "
                f"'{self.schema.name}' is only available for these backends: {sorted(self.kernels)}."
            )
        return self._run(kernel, positional, keywords)

    @property
    def is_decomposed(self) -> bool:
        """Return True if a call runs other operators, which handlers of `__torch_dispatch__` see instead of it."""
        return list(self.kernels) == ["CompositeImplicitAutograd"]

    def _kernel_of(self, kind: str) -> Kernel | None:
        own = self.kernels.get(_DEVICES.get(kind, kind.upper()))
        if own is None and kind == "meta":
            own = self.fake
        return own or next((self.kernels[key] for key in _COMPOSITE if key in self.kernels), None)

    def _run(self, kernel: Kernel, positional: list[Any], keywords: dict[str, Any]) -> Any:
        shown = positional[: self.count_shown(positional)]
        named = {a.name: a for a in self.schema.arguments}
        return kernel(*shown, **{k: v for k, v in keywords.items() if not is_default(named[k], v)})

    def count_shown(self, positional: list[Any]) -> int:
        """Return how many positional arguments a kernel receives: trailing ones with their defaults are left out."""
        return self.count_given(positional)

    def count_given(self, positional: list[Any]) -> int:
        """Return the number of positional arguments up to the last one that is not its default."""
        arguments = [a for a in self.schema.arguments if not a.kwarg_only]
        count = len(positional)
        while count and is_default(arguments[count - 1], positional[count - 1]):
            count -= 1
        return count


_COMPOSITE = (
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)


def is_default(argument: Argument, value: Any) -> bool:
    """Return True if a value is the default of an argument."""
    same = value is argument.default
    return argument.has_default and (same or (not isinstance(value, Tensor) and value == argument.default))


def device_type_of(positional: Sequence[Any], keywords: dict[str, Any]) -> str:
    """Return the device type that selects the kernel: "cpu" without tensors."""
    kinds = {t.device.type for t in tensors_in([*positional, *keywords.values()])}
    return next((kind for kind in ("meta", "cuda") if kind in kinds), "cpu")


# -- the table ----------------------------------------------------------------------------------------------------


class _Registry:
    """The table of all operators that the program defined.

    Attributes:
        operators: (qualified name, overload name) -> operator.
        owners: Namespace -> the place that declared all of it.
        load_aten: Adds the overloads of an operator of `torch.ops.aten`.
    """

    operators: dict[tuple[str, str], Operator] = {}
    owners: dict[str, str] = {}
    load_aten: Callable[[str], None] | None = None


def define_operator(name: str, text: str, tags: Sequence[Any] = ()) -> Operator:
    """Add an operator to the table.

    Args:
        name: Its namespace.
        text: Its schema, without the namespace.
        tags: Its properties.

    Raises:
        RuntimeError: If the text is not a schema, or the operator exists.
    """
    schema = parse_schema(text)
    if "::" not in schema.name:
        schema = schema._replace(name=f"{name}::{schema.name}")
    key = (schema.name, schema.overload_name)
    if key in _Registry.operators:
        raise RuntimeError(
            f"Tried to register an operator ({schema}) with the same name and overload name multiple times. Each "
            "overload's schema should only be registered with a single call to def()."
        )
    operator = _Registry.operators[key] = Operator(schema, tags)
    return operator


def remove_operator(operator: Operator) -> None:
    """Remove an operator from the table."""
    _Registry.operators.pop((operator.schema.name, operator.schema.overload_name), None)


def claim_namespace(name: str) -> None:
    """Record that one library defines a namespace.

    Raises:
        RuntimeError: If another one does.
    """
    if name in _Registry.owners:
        raise RuntimeError(
            f"Only a single TORCH_LIBRARY can be used to register the namespace {name}; please put all of your "
            "definitions in a single TORCH_LIBRARY block."
        )
    _Registry.owners[name] = name


def release_namespace(name: str) -> None:
    """Forget that a library defines a namespace."""
    _Registry.owners.pop(name, None)


def add_operator(operator: Operator) -> None:
    """Add an operator with its kernels to the table."""
    _Registry.operators[operator.schema.name, operator.schema.overload_name] = operator


def _load(qualname: str) -> None:
    """Add the overloads of an operator of PyTorch's own to the table, unless they are there."""
    namespace, _, name = qualname.partition("::")
    if namespace == "aten" and _Registry.load_aten is not None:
        _Registry.load_aten(name)


def load_aten_with(load: Callable[[str], None]) -> None:
    """Let the overloads of an operator `aten::name` be added by `load(name)` when it is first looked for."""
    _Registry.load_aten = load


def find_operator(qualname: str) -> Operator | None:
    """Return the operator of a name such as "ns::name.overload"; None if there is none."""
    name, _, overload = qualname.partition(".")
    _load(name)
    return _Registry.operators.get((name, "" if overload == "default" else overload))


def overloads_of(qualname: str) -> list[str]:
    """Return the overload names of an operator; the one without a name is "default"."""
    _load(qualname)
    return [overload or "default" for name, overload in _Registry.operators if name == qualname]


def operator_names(namespace: str) -> list[str]:
    """Return the names of the operators of a namespace."""
    return sorted(
        {name.partition("::")[2] for name, _ in _Registry.operators if name.startswith(f"{namespace}::")}
    )


def check_key(key: str) -> None:
    """Raise RuntimeError if PyTorch has no such dispatch key."""
    if key not in _KEYS:
        raise RuntimeError(f"could not parse dispatch key: {key}")


# -- torch.ops ----------------------------------------------------------------------------------------------------


class OpOverload:
    """One overload of an operator, such as `torch.ops.mylib.add.default`."""

    def __init__(self, packet: OpOverloadPacket, operator: Operator) -> None:
        self._operator = operator
        self._overloadpacket = self.overloadpacket = packet
        self._schema = operator.schema
        self._overloadname = operator.schema.overload_name or "default"
        self._name = operator.schema.name + (
            f".{operator.schema.overload_name}" if operator.schema.overload_name else ""
        )
        self._opname = packet._opname
        self.tags = operator.tags
        self.__name__ = f"{packet.__name__}.{self._overloadname}"
        self.__qualname__ = self._name
        self.__module__ = packet.__module__

    @property
    def namespace(self) -> str:
        """Return the operator's namespace."""
        return self._schema.name.partition("::")[0]

    @property
    def op(self) -> OpOverload:
        """Return this overload."""
        return self

    def name(self) -> str:
        """Return the qualified name, such as "mylib::add"."""
        return self._name

    def has_kernel_for_dispatch_key(self, k: Any) -> bool:
        """Return True if a kernel is registered for a dispatch key.

        Args:
            k: The key's name.
        """
        return str(k).removeprefix("DispatchKey.") in self._operator.kernels

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if interception.count and dispatch.is_shown((*args, *kwargs.values())):
            return self._call_shown(args, kwargs)
        return self._operator.call(args, kwargs)

    def _call_shown(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Show a call to dispatch handlers, unless it is to be recorded or decomposed: then its parts are shown."""
        operator = self._operator
        positional, keywords = operator.bind(args, kwargs)
        tensors = tensors_in([*positional, *keywords.values()])
        if operator.is_decomposed or (mode.recording and any(t.requires_grad for t in tensors)):
            return operator.call(args, kwargs)
        named = {a.name: a for a in operator.schema.arguments}
        shown = tuple(positional[: operator.count_given(positional)])
        return dispatch.run_handlers(
            self, shown, {k: v for k, v in keywords.items() if k not in named or not is_default(named[k], v)}
        )

    def __str__(self) -> str:
        return f"{self._overloadpacket}.{self._overloadname}"

    def __repr__(self) -> str:
        return f"<OpOverload(op='{self._overloadpacket}', overload='{self._overloadname}')>"

    def __deepcopy__(self, memo: Any = None) -> OpOverload:
        return self


@cache
def packet_of(qualname: str) -> OpOverloadPacket:
    """Return the overloads of an operator: always the same object for a name."""
    return OpOverloadPacket(qualname)


class OpOverloadPacket:
    """All overloads of an operator, such as `torch.ops.mylib.add`."""

    def __init__(self, qualname: str) -> None:
        namespace, _, name = qualname.partition("::")
        self._qualified_op_name, self._opname = qualname, name
        self.__name__ = self.__qualname__ = name
        self.__module__ = f"torch.ops.{namespace}"
        self._overloads: dict[str, OpOverload] = {}

    def overloads(self) -> list[str]:
        """Return the names of this operator's overloads, such as "default" and "out"."""
        return overloads_of(self._qualified_op_name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.overloads())

    def __getattr__(self, key: str) -> OpOverload:
        if key.startswith("__"):
            raise AttributeError(f"'{self}' can't have an overload name beginning with '__'")
        operator = find_operator(f"{self._qualified_op_name}.{key}")
        if operator is None:
            raise AttributeError(f"The underlying op of '{self}' has no overload name '{key}'")
        overload = self._overloads.get(key)
        if overload is None or overload._operator is not operator:
            overload = self._overloads[key] = OpOverload(self, operator)
        return overload

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        names, errors = self.overloads(), []
        for name in names:
            overload = getattr(self, name)
            operator: Operator = overload._operator
            if len(names) > 1:
                try:
                    operator.bind(args, kwargs)
                except RuntimeError as error:
                    errors.append(str(error))
                    continue
            return overload(*args, **kwargs)
        raise RuntimeError(
            "Overloaded torch operator invoked from Python failed to match any schema:\n" + "\n".join(errors)
        )

    def __str__(self) -> str:
        return f"{self.__module__.removeprefix('torch.ops.')}.{self._opname}"

    def __repr__(self) -> str:
        return f"<OpOverloadPacket(op='{self}')>"

    def __deepcopy__(self, memo: Any = None) -> OpOverloadPacket:
        return self
