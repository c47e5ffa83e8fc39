"""torch.library: operators that the program defines, which `torch.ops` then has.

See Note [Kernels of operators].
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from flambeau import _ops
from flambeau._library import user_operators as table
from flambeau._library.custom_ops import CustomOpDef, Kinds, define_custom_op, find_definition
from flambeau._library.infer_schema import infer_schema
from flambeau._library.opcheck import opcheck
from flambeau._library.operator_gradients import record_by_formula, refuse_backward
from flambeau._library.user_operators import Operator, OpOverload
from flambeau.core.dtype import dtype
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names, publish

__all__ = [
    "CustomOpDef", "Library", "custom_op", "define", "fallthrough_kernel", "get_ctx", "get_kernel", "impl",
    "impl_abstract", "infer_schema", "opcheck", "register_autocast", "register_autograd", "register_fake",
    "register_kernel", "register_torch_dispatch", "register_vmap", "triton_op", "wrap_triton",
]  # fmt: skip

_RESERVED = ("prim",)
_KEYS = {
    "cpu": "CPU",
    "cuda": "CUDA",
    "meta": "Meta",
    "xpu": "XPU",
    "mps": "MPS",
}  # device type -> dispatch key


def fallthrough_kernel() -> NoReturn:
    """Stand for the absence of a kernel in `Library.impl`; calling it raises.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError("fallthrough_kernel() should never be called.")


class Library:
    """Operators and kernels of one namespace. They are removed when this object is deleted.

    Args:
        ns: The namespace.
        kind: "DEF" for all definitions of a namespace, "FRAGMENT" for some, "IMPL" for kernels.
        dispatch_key: The key of kernels without their own.

    Raises:
        ValueError: If the kind is another one, or the namespace is reserved.
        RuntimeError: If another library defines the namespace.
    """

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("IMPL", "DEF", "FRAGMENT"):
            raise ValueError(f"Unsupported kind: {kind}")
        if ns in _RESERVED and kind in ("DEF", "FRAGMENT"):
            raise ValueError(
                f"{ns} is a reserved namespace. Please try creating a library with another name."
            )
        table.check_key(dispatch_key)
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key
        self._undo: list[Callable[[], None]] = []
        if kind == "DEF":
            table.claim_namespace(ns)
            self._undo.append(functools.partial(table.release_namespace, ns))
        self._finalizer = weakref.finalize(self, _undo_all, self._undo)

    def __repr__(self) -> str:
        return f"Library(kind={self.kind}, ns={self.ns}, dispatch_key={self.dispatch_key})>"

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Define an operator and return its name.

        Args:
            schema: The schema, such as "add(Tensor x, Tensor y) -> Tensor".
            alias_analysis: "" or "CONSERVATIVE". No effect.
            tags: Properties of the operator.

        Raises:
            RuntimeError: If the schema is not one, or the operator exists.
        """
        if alias_analysis not in ("", "FROM_SCHEMA", "CONSERVATIVE"):
            raise RuntimeError(f"Invalid alias_analysis type {alias_analysis}")
        operator = table.define_operator(self.ns, schema, tags if isinstance(tags, Sequence) else (tags,))
        operator.autograd = refuse_backward(operator)
        self._undo.append(functools.partial(table.remove_operator, operator))
        return schema.partition("(")[0]

    def impl(
        self,
        op_name: str | OpOverload,
        fn: Callable[..., Any],
        dispatch_key: str = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = True,
    ) -> None:
        """Register a kernel of an operator.

        Args:
            op_name: The operator's name, with its overload, or the overload itself.
            fn: The kernel.
            dispatch_key: For which tensors: "CPU", "CUDA", "Autograd", "CompositeImplicitAutograd" and others.
            with_keyset: Must be False: Flambeau has no sets of dispatch keys.
            allow_override: If False, an existing kernel is an error.

        Raises:
            TypeError: If `fn` is not callable.
            RuntimeError: If there is no such operator or dispatch key, or a kernel exists.
            NotSupportedError: If `with_keyset` is True.
        """
        if not callable(fn):
            raise TypeError(f"Input function is required to be a callable but found type {type(fn)}")
        if with_keyset:
            raise NotSupportedError(
                "Library.impl(with_keyset=True): Flambeau has no sets of dispatch keys. Call the next kernel directly."
            )
        key = dispatch_key or self.dispatch_key or "CompositeImplicitAutograd"
        table.check_key(key)
        operator = self._resolve(op_name)
        if not allow_override and key in operator.kernels:
            raise RuntimeError(
                "This is not allowed since there's already a kernel registered from python overriding "
                f"{operator.schema.name.partition('::')[2]}'s behavior for {key} dispatch key and {self.ns} namespace."
            )
        if fn is fallthrough_kernel:
            operator.kernels.pop(key, None)
            return
        operator.kernels[key] = fn
        self._undo.append(functools.partial(_remove_kernel, operator, key, fn))

    def _resolve(self, op_name: str | OpOverload) -> Operator:
        name = op_name.name() if isinstance(op_name, OpOverload) else op_name
        if "::" in name and name.partition("::")[0] != self.ns:
            raise RuntimeError(f"Library of namespace {self.ns} cannot register a kernel for {name}")
        operator = table.find_operator(name if "::" in name else f"{self.ns}::{name}")
        if operator is None:
            raise RuntimeError(
                f"operator {self.ns}::{name.partition('::')[2] or name} does not exist: define it first"
            )
        return operator

    def fallback(
        self, fn: Callable[..., Any], dispatch_key: str = "", *, with_keyset: bool = False
    ) -> NoReturn:
        """Raise NotSupportedError: Flambeau has no kernel that serves every operator."""
        raise NotSupportedError(
            "Library.fallback: Flambeau has no kernel that serves every operator. Use TorchFunctionMode."
        )

    def _destroy(self) -> None:
        self._finalizer()


def _undo_all(steps: list[Callable[[], None]]) -> None:
    while steps:
        steps.pop()()


def _remove_kernel(operator: Operator, key: str, fn: Callable[..., Any]) -> None:
    if operator.kernels.get(key) is fn:
        del operator.kernels[key]


_kept: list[Library] = []  # libraries of `define` and `impl`, which last as long as the process


def _fragment(qualname: str, lib: Library | None) -> Library:
    """Return `lib`, or a library of the name's namespace that lasts."""
    if lib is not None:
        return lib
    ns = qualname.partition("::")[0]
    kept = next((library for library in _kept if library.ns == ns), None)
    if kept is None:
        kept = Library(ns, "FRAGMENT")
        _kept.append(kept)
    return kept


def _name_of(op: Any) -> str:
    if isinstance(op, CustomOpDef):
        return op._qualname
    name = op.name() if isinstance(op, OpOverload) else op
    if not isinstance(name, str):
        raise ValueError(f"got unexpected type for op: {type(op)}")
    return name


def _operator_of(op: Any) -> Operator:
    name = _name_of(op)
    operator = table.find_operator(name)
    if operator is None:
        raise RuntimeError(f"operator {name} does not exist")
    return operator


def _overload_of(operator: Operator) -> OpOverload:
    namespace, _, name = operator.schema.name.partition("::")
    packet = getattr(getattr(_ops.ops, namespace), name)
    overload: OpOverload = getattr(packet, operator.schema.overload_name or "default")
    return overload


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: Kinds = None,
    schema: str | None = None,
    tags: Sequence[Any] | None = None,
) -> Any:
    """Return an operator that calls a Python function, or a decorator.

    Args:
        name: "namespace::name".
        fn: The function. Its annotations give the schema.
        mutates_args: Names of arguments that it changes, or "unknown".
        device_types: The device types that it handles; None for all.
        schema: The schema, without the name, instead of that of the annotations.
        tags: Properties of the operator.

    Raises:
        ValueError: If an annotation is missing or has no type in schemas.
    """

    def build(fn: Callable[..., Any]) -> CustomOpDef:
        return define_custom_op(name, fn, mutates_args, device_types, schema, tags or (), _overload_of)

    return build if fn is None else build(fn)


def define(qualname: str, schema: str, *, lib: Library | None = None, tags: Any = ()) -> None:
    """Define an operator.

    Args:
        qualname: "namespace::name".
        schema: The schema without the name, such as "(Tensor x) -> Tensor".
        lib: The library that owns it.
        tags: Properties of the operator.

    Raises:
        ValueError: If the name is not a str, or the schema has a name.
        RuntimeError: If the schema is not one, or the operator exists.
    """
    if not isinstance(qualname, str):
        raise ValueError(
            f"define(qualname, schema): expected qualname to be instance of str, got {type(qualname)}"
        )
    _, colons, name = qualname.partition("::")
    if not colons:
        raise ValueError(f'Expected `qualname` to be of the form "namespace::name", but got {qualname}.')
    if not schema.lstrip().startswith("("):
        raise ValueError(
            'define(qualname, schema, ...): expected schema to look like e.g. "(Tensor x) -> Tensor" '
            f'but got "{schema}"'
        )
    _fragment(qualname, lib).define(name + schema, tags=tags)


def impl(qualname: Any, types: Any, func: Any = None, *, lib: Library | None = None) -> Any:
    """Register a kernel of an operator, as a decorator without `func`.

    Args:
        qualname: "namespace::name". In the older form `impl(lib, name, dispatch_key)`, the library.
        types: Device types such as "cpu", dispatch keys such as "CPU", or "default" for all.
        func: The kernel.
        lib: The library that owns it.

    Raises:
        RuntimeError: If there is no such operator or dispatch key.
    """
    if isinstance(qualname, Library):
        return _impl_of_old(qualname, types, func or "")
    keys = [_key_of(kind) for kind in ([types] if isinstance(types, str) else types)]
    _operator_of(qualname)

    def register(func: Callable[..., Any]) -> Callable[..., Any]:
        for key in keys:
            _fragment(qualname, lib).impl(qualname, func, key)
        return func

    return register if func is None else register(func) and None


def _impl_of_old(library: Library, name: str, dispatch_key: str) -> Any:
    def register(func: Callable[..., Any]) -> Callable[..., Any]:
        library.impl(name, func, dispatch_key)
        return func

    return register


def _key_of(kind: str) -> str:
    if kind == "default":
        return "CompositeExplicitAutograd"
    key = _KEYS.get(kind, kind)
    table.check_key(key)
    return key


def register_kernel(
    op: Any, device_types: Kinds, func: Callable[..., Any] | None = None, /, *, lib: Library | None = None
) -> Any:
    """Register a function of an operator for kinds of devices, as a decorator without `func`.

    Args:
        op: An operator or its name.
        device_types: "cpu", "cuda", both, or None for all.
        func: The function.
        lib: The library that owns it.

    Raises:
        RuntimeError: If there is no such operator.
    """
    definition = find_definition(op)
    if definition is not None:
        return definition.register_kernel(device_types, func)
    return impl(_name_of(op), "default" if device_types is None else device_types, func, lib=lib)


def register_fake(
    op: Any,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
    _stacklevel: int = 1,
    allow_override: bool = True,
) -> Any:
    """Register the function that computes shapes and dtypes of an operator's results without data.

    Args:
        op: An operator or its name.
        func: The function; without it, the result is a decorator.
        lib: The library that owns it.
        allow_override: If False, an existing function is an error. Operators of `custom_op` ignore it.

    Raises:
        RuntimeError: If there is no such operator, or it has a function that may not be replaced.
    """
    operator = _operator_of(op)
    if not allow_override and find_definition(op) is None and operator.fake is not None:
        raise RuntimeError(
            f"register_fake(...): the operator {operator.schema.name} already has a fake impl registered."
        )

    def register(func: Callable[..., Any]) -> Callable[..., Any]:
        operator.fake = func
        return func

    return register if func is None else register(func)


def impl_abstract(
    qualname: str, func: Any = None, *, lib: Library | None = None, _stacklevel: int = 1
) -> Any:
    """Return `register_fake(qualname, func)`, of old."""
    return register_fake(qualname, func, lib=lib)


def register_autograd(
    op: Any,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: Library | None = None,
) -> None:
    """Register the derivative of an operator.

    Args:
        op: An operator or its name.
        backward: `backward(ctx, *grads)` returns one gradient for each input.
        setup_context: `setup_context(ctx, inputs, output)` keeps what `backward` needs.
        lib: The library that owns it.

    Raises:
        RuntimeError: If there is no such operator, or it changes its arguments.
    """
    definition = find_definition(op)
    if definition is not None:
        definition.register_autograd(backward, setup_context=setup_context)
        return
    operator = _operator_of(op)
    if operator.schema.is_mutable:
        raise RuntimeError(
            f"Cannot register autograd formula for non-functional operator {op} with schema {operator.schema}. Please "
            "create a functional operator and register an autograd formula for that."
        )
    operator.autograd = record_by_formula(operator, backward, setup_context)


def register_vmap(op: Any, func: Any = None, /, *, lib: Library | None = None) -> Any:
    """Store the batching rule of an operator that `custom_op` created, as a decorator without `func`.

    Raises:
        RuntimeError: If there is no such operator.
    """
    definition = find_definition(op)
    if definition is None:
        raise RuntimeError(
            f"register_vmap: {_name_of(op)} is not an operator that torch.library.custom_op created"
        )
    return definition.register_vmap(func)


def register_autocast(op: Any, device_type: str, cast_inputs: dtype, /, *, lib: Library | None = None) -> Any:
    """Let autocast convert the floating-point inputs of an operator that `custom_op` created.

    Raises:
        RuntimeError: If there is no such operator.
        ValueError: If the device type is neither "cpu" nor "cuda".
    """
    definition = find_definition(op)
    if definition is None:
        raise RuntimeError(
            f"register_autocast: {_name_of(op)} is not an operator that torch.library.custom_op created"
        )
    return definition.register_autocast(device_type, cast_inputs)


def register_torch_dispatch(
    op: Any, torch_dispatch_class: Any, func: Any = None, /, *, lib: Library | None = None
) -> NoReturn:
    """Raise NotSupportedError: `__torch_dispatch__` is not called for these operators."""
    raise NotSupportedError(
        "register_torch_dispatch: Flambeau does not call __torch_dispatch__ for operators of torch.library. Use "
        "__torch_function__."
    )


def get_ctx() -> None:
    """Return None, because no operator with results of unknown size is being traced."""


def get_kernel(op: Any, dispatch_key: Any) -> Callable[..., Any]:
    """Return the kernel of an operator for a dispatch key.

    Raises:
        RuntimeError: If there is none.
    """
    key = str(dispatch_key).removeprefix("DispatchKey.")
    kernel = _operator_of(op).kernels.get(key)
    if kernel is None:
        raise RuntimeError(f"No kernel for operator {_name_of(op)} and dispatch key {key}")
    return kernel


def triton_op(
    name: str, fn: Callable[..., Any] | None = None, /, *, mutates_args: Any, schema: str | None = None
) -> Any:
    """Define an operator whose implementation may launch Triton kernels. Its calls run the implementation.

    Flambeau does not run Triton kernels: `wrap_triton` raises when the implementation calls it.

    Args:
        name: The operator's name, "namespace::name".
        fn: The implementation. Without it, the result is a decorator.
        mutates_args: Names of the arguments that the implementation changes.
        schema: The operator's schema. By default it is inferred from the annotations of `fn`.
    """
    return custom_op(name, fn, mutates_args=mutates_args, schema=schema)


def wrap_triton(triton_kernel: Any, /) -> NoReturn:
    """Raise NotSupportedError: Flambeau does not run Triton kernels."""
    raise NotSupportedError("wrap_triton: Flambeau does not run Triton kernels.")


publish(globals())
explain_absent_names(globals(), "torch.library")
