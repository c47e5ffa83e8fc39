"""`torch.library.custom_op`: an operator from a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flambeau._library.infer_schema import infer_schema
from flambeau._library.operator_gradients import record_by_formula
from flambeau._library.user_operators import (
    Operator,
    OpOverload,
    define_operator,
    find_operator,
    remove_operator,
)
from flambeau.amp.autocast_mode import _cast, autocast
from flambeau.core.dtype import dtype
from flambeau.tensor import autocast as autocast_state
from flambeau.tensor.arguments.nested_tensors import tensors_in
from flambeau.tensor.tensor import Tensor

Kinds = str | Sequence[str] | None

_KEYS = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}  # device type -> dispatch key


class CustomOpDef:
    """An operator that `torch.library.custom_op` created from a Python function. Calling it runs the operator."""

    def __init__(
        self,
        namespace: str,
        name: str,
        schema: str,
        fn: Callable[..., Any],
        overload: OpOverload,
        operator: Operator,
    ) -> None:
        self._namespace, self._name, self._schema, self._init_fn = namespace, name, schema, fn
        self._opoverload, self._operator = overload, operator
        self._setup_context_fn: Callable[..., Any] | None = None
        self._backward_fn: Callable[..., Any] | None = None
        self._disabled_kernel: set[str] = set()
        self._vmap_fn: Callable[..., Any] | None = None
        self._autocast: dict[str, dtype] = {}
        operator.autograd = record_by_formula(operator, None, None)

    @property
    def _qualname(self) -> str:
        return f"{self._namespace}::{self._name}"

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._qualname})>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._opoverload(*args, **kwargs)

    def register_kernel(self, device_types: Kinds, fn: Callable[..., Any] | None = None, /) -> Any:
        """Register a function for kinds of devices, as a decorator without `fn`.

        Args:
            device_types: "cpu", "cuda", both, or None for all.
            fn: The function.
        """

        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            for kind in (
                [device_types] if device_types is None or isinstance(device_types, str) else device_types
            ):
                key = "CompositeExplicitAutograd" if kind is None else _KEYS.get(kind, kind.upper())
                self._operator.kernels[key] = self._guard(fn, kind)
            return fn

        return register if fn is None else register(fn)

    def _guard(self, fn: Callable[..., Any], kind: str | None) -> Callable[..., Any]:
        """Return a kernel that checks what `fn` returns, counts changes and honors `set_kernel_enabled`."""
        schema = self._operator.schema

        def run(*args: Any, **kwargs: Any) -> Any:
            own = self._init_fn if kind in self._disabled_kernel else fn
            results = own(*args, **kwargs)
            check_aliases(self._name, own, [*args, *kwargs.values()], results)
            if schema.is_mutable:
                named = (
                    dict(zip([a.name for a in schema.arguments if not a.kwarg_only], args, strict=False))
                    | kwargs
                )
                for argument in schema.arguments:
                    if argument.is_write:
                        for tensor in tensors_in(named.get(argument.name)):
                            tensor.counter.version += 1
            return results

        return run

    def register_fake(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Register the function that computes shapes and dtypes of results without data, and return it."""
        self._operator.fake = fn
        return fn

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """Register the operator's derivative.

        Args:
            backward: `backward(ctx, *grads)` returns one gradient for each input.
            setup_context: `setup_context(ctx, inputs, output)` keeps what `backward` needs.

        Raises:
            RuntimeError: If the operator changes its arguments.
        """
        if self._operator.schema.is_mutable:
            raise RuntimeError(
                f"Cannot register autograd formula for non-functional operator {self} with schema "
                f"{self._operator.schema}. Please create a functional operator and register an autograd formula for "
                "that."
            )
        self._backward_fn, self._setup_context_fn = backward, setup_context
        self._operator.autograd = record_by_formula(self._operator, backward, setup_context)

    def register_torch_dispatch(
        self, torch_dispatch_class: Any, fn: Callable[..., Any] | None = None, /
    ) -> Any:
        """Raise NotImplementedError: `__torch_dispatch__` of subclasses is not called for these operators."""
        raise NotImplementedError(
            "register_torch_dispatch: Flambeau does not call __torch_dispatch__ for operators of torch.library. Use "
            "__torch_function__."
        )

    def register_vmap(self, func: Callable[..., Any] | None = None) -> Any:
        """Store the batching rule of the operator, as a decorator without `func`."""

        def register(func: Callable[..., Any]) -> Callable[..., Any]:
            self._vmap_fn = func
            return func

        return register if func is None else register(func)

    def register_autocast(self, device_type: str, cast_inputs: dtype) -> Any:
        """Let autocast convert the operator's floating-point inputs.

        Args:
            device_type: "cpu" or "cuda".
            cast_inputs: The dtype.

        Raises:
            ValueError: If it is another device type.
        """
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if device_type not in ("cpu", "cuda"):
            raise ValueError(f"Unknown device type: {device_type}")
        self._autocast[device_type] = cast_inputs
        call = Operator.call.__get__(self._operator)

        def call_with_casts(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            if not autocast_state.local.enabled[device_type]:
                return call(args, kwargs)
            with autocast(device_type, enabled=False):
                return call(
                    _cast(tuple(args), device_type, cast_inputs), _cast(kwargs, device_type, cast_inputs)
                )

        self._operator.call = call_with_casts  # type: ignore[method-assign]
        return None

    @contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:
        """Return a context manager in which the kernel of a device type is used, or the original function.

        Args:
            device_type: The device type.
            enabled: True if its kernel is used.
        """
        before = set(self._disabled_kernel)
        (self._disabled_kernel.discard if enabled else self._disabled_kernel.add)(device_type)
        try:
            yield
        finally:
            self._disabled_kernel = before


def check_aliases(name: str, fn: Any, inputs: Iterable[Any], results: Any) -> None:
    """Raise RuntimeError if a result shares memory with an input or another result."""
    seen = {id(t.memory) for t in tensors_in(inputs)}
    for tensor in tensors_in(results):
        if id(tensor.memory) in seen and tensor.numel():
            raise RuntimeError(
                f"{name} (with implementation in {inspect.getmodule(fn)}): The output of this custom operator (1) "
                "must not also be an input to this custom operator and (2) may not alias any inputs to this custom "
                "operator or other returns. The most common way to trigger this error is if we have "
                "y = custom_op(x) and y and x are the same Tensor. Please instead return a clone of the offending "
                "output tensor(s) (e.g. return x.clone()) or refactor the custom operator to not return y."
            )
        seen.add(id(tensor.memory))


_definitions: dict[str, CustomOpDef] = {}


def find_definition(op: Any) -> CustomOpDef | None:
    """Return the definition of an operator that `custom_op` created, by its name or overload; else None."""
    if isinstance(op, CustomOpDef):
        return op
    name = op.name() if isinstance(op, OpOverload) else op
    return _definitions.get(name) if isinstance(name, str) else None


def define_custom_op(
    qualname: str,
    fn: Callable[..., Any],
    mutates_args: str | Iterable[str],
    device_types: Kinds,
    schema: str | None,
    tags: Sequence[Any],
    overload_of: Callable[[Operator], OpOverload],
) -> CustomOpDef:
    """Define an operator from a function; one of the same name is replaced, as in PyTorch."""
    namespace, name = qualname.split("::")
    text = infer_schema(fn, mutates_args=mutates_args) if schema is None else schema
    before = find_operator(qualname) if qualname in _definitions else None
    if before is not None:
        remove_operator(before)
    operator = define_operator(namespace, name + text, tags)
    if schema is not None and mutates_args != "unknown":
        changed, declared = set(mutates_args), {a.name for a in operator.schema.arguments if a.is_write}
        if changed != declared:
            remove_operator(operator)
            raise ValueError(
                f"Attempted to create a custom op with `mutates_args={mutates_args}` and `schema={schema}. The schema "
                f"suggests that the op mutates {declared}which is different from what was provided to us in "
                "`mutates_args`. Please make these consistent."
            )
    definition = _definitions[qualname] = CustomOpDef(
        namespace, name, text, fn, overload_of(operator), operator
    )
    definition.register_kernel(device_types, fn)
    return definition


def same_tensor(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have equal shapes, dtypes and devices."""
    return a.shape == b.shape and a.dtype is b.dtype and a.device == b.device
