"""`__torch_function__`: tensor classes and other objects that override public functions.

# Note [Functions that tensors override]
A tensor class overrides each public function: `torch.add(a, t)` calls `T.__torch_function__` if `t` is a `T`. A check
of all arguments in each call would cost every program time for a feature that few programs use. Functions are therefore
unchanged until the program defines its first class with overrides. Then the code object (`__code__`) of each public
function is replaced, once, by a door that checks the arguments and continues with the original code. The function
object stays the same, so references to it that the program has stored remain valid and `func is torch.add` holds.

Other objects than tensors may override functions too. Their classes are not registered anywhere, so the doors are
installed when a function of `torch`, a tensor operator or `torch.overrides` receives the first such object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

from flambeau.core.size import Size
from flambeau.tensor.tensor import Tensor


class _Here(threading.local):
    """One thread's overrides: whether classes and modes may override, and the modes that it has entered."""

    classes = True
    modes = True

    def __init__(self) -> None:
        self.entered: list[Any] = []


here = _Here()

_PLAIN = {Tensor, Size, int, float, bool, complex, str, type(None), slice, type(...)}
"""Types of arguments that override nothing."""

_namespaces: list[dict[str, Any]] = []
_own_members: dict[str, Any] = {}
_arming = threading.RLock()  # reentrant, because a finalizer may interrupt a call
_armed = False


def announce(*namespaces: dict[str, Any]) -> None:
    """Register the public functions of these namespaces, and the members of Tensor, as overridable.

    Members are recorded at the first call. A function that a program puts in their place is overridden through the
    functions that it calls.
    """
    _namespaces.extend(namespaces)
    if not _own_members:
        _own_members.update(vars(Tensor))
    if _armed:
        _put_doors()


# -- who overrides --------------------------------------------------------------------------------------


def ignore_overrides(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Call the function without overrides: the `__torch_function__` of Parameter and similar classes."""
    with DisableTorchFunctionSubclass():
        return func(*args, **kwargs or {})


def overrides(kind: type) -> bool:
    """Return True if objects of a type override functions."""
    if kind is Tensor:
        return False
    return getattr(kind, "__torch_function__", ignore_overrides) not in (None, ignore_overrides)


def overriding(values: Iterable[Any]) -> list[Any]:
    """Return one object of each type that overrides functions, derived types before their bases.

    Elements of lists and tuples count.
    """
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is list or kind is tuple:
            for each in overriding(value):
                _place(each, found)
        elif overrides(kind):
            _place(value, found)
    return found


def _place(value: Any, found: list[Any]) -> None:
    kind = type(value)
    if any(type(other) is kind for other in found):
        return
    before = [at for at, other in enumerate(found) if issubclass(kind, type(other))]
    found.insert(before[0] if before else len(found), value)


# -- asking them ----------------------------------------------------------------------------------------


def ask(shown: Any, define: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of the public function `shown`, from an overriding argument if there is one, otherwise from
    `define`.
    """
    found = overriding((*args, *kwargs.values())) if here.classes else ()
    if found or in_mode():
        return handle(shown, found, args, kwargs)
    return define(*args, **kwargs)


def _ask_modes(shown: Any, define: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a creation function, which only modes can override."""
    return handle(shown, (), args, kwargs) if in_mode() else define(*args, **kwargs)


def _ask_operator(
    shown: Any, define: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the result of a Python operator. If an operand returns NotImplemented, Python tries the other one's
    operator.
    """
    found = overriding(args) if here.classes else ()
    if not (found or in_mode()):
        return define(*args, **kwargs)
    try:
        return handle(shown, found, args, kwargs)
    except TypeError:
        if len(args) == 1:
            raise
        return NotImplemented


def in_mode() -> bool:
    """Return True if a mode may override functions now."""
    return bool(here.entered) and here.modes


def is_enabled() -> bool:
    """Return True if classes may override functions in this thread now."""
    return here.classes


def handle(shown: Any, found: Iterable[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the innermost mode, then the objects in `found`, until one of them returns a result of `shown`."""
    asked, types = list(found), tuple([type(each) for each in found])
    call = (shown, types, args, kwargs) if kwargs else (shown, types, args)
    if in_mode():
        mode = here.entered.pop()
        asked.insert(0, mode)
        try:
            result = mode.__torch_function__(*call)
        finally:
            here.entered.append(mode)
        if result is not NotImplemented:
            return result
        if not types:
            raise _nobody(shown, asked)
    for each in asked[len(asked) - len(types) :]:
        result = each.__torch_function__(*call)
        if result is not NotImplemented:
            return result
    raise _nobody(shown, asked)


def _nobody(shown: Any, asked: list[Any]) -> TypeError:
    tried = "".join([f"\n\n  - {_describe_overrider(each)}" for each in asked])
    return TypeError(
        f"Multiple dispatch failed for '{name_of(shown) or shown}'; all __torch_function__ handlers returned "
        f"NotImplemented:{tried}"
    )


def _describe_overrider(asked: Any) -> str:
    if isinstance(asked, TorchFunctionMode):
        return f"mode object {asked}"
    return f"{'tensor subclass' if isinstance(asked, Tensor) else 'object of'} {type(asked)}"


class _Switch:
    """A reentrant context manager that disables some overrides inside its block."""

    classes, modes = False, True

    def __init__(self) -> None:
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._before.append((here.classes, here.modes))
        here.classes = here.classes and self.classes
        here.modes = here.modes and self.modes

    def __exit__(self, *_: object) -> None:
        here.classes, here.modes = self._before.pop()


class DisableTorchFunctionSubclass(_Switch):
    """A context manager inside which classes override nothing: functions treat their instances as plain tensors."""


class DisableTorchFunction(_Switch):
    """A context manager inside which neither classes nor modes override anything."""

    modes = False


class TorchFunctionMode:
    """A context manager whose `__torch_function__` overrides all public functions, whatever their arguments are.

    It is inactive while its own `__torch_function__` runs, which may call the overridden function.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError

    def __enter__(self) -> TorchFunctionMode:
        arm()
        here.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        here.entered.pop()


# -- doors: see Note [Functions that tensors override] ----------------------------------------------------


def arm() -> None:
    """Install the override check in each public function; only the first call has an effect."""
    global _armed
    with _arming:
        if not _armed:
            _put_doors()
            _armed = True


def _put_doors() -> None:
    for name, function in _functions():
        _name(function, name)
        _put_door(function, function, _ask_modes if name in _MAKERS else ask)
    for name, value in _members():
        if isinstance(value, property):
            _put_door(value.fget, value.__get__)
            _put_door(value.fset, value.__set__)
            _put_door(value.fdel, value.__delete__)
        elif name in _OPERATORS:
            _put_door(value, vars(Tensor)[_OPERATORS[name]], _ask_operator)
        else:
            _name(value, name)
            _put_door(value, value, _ask_operator if name in _OWN_OPERATORS else ask)


def _name(function: FunctionType, name: str) -> None:
    if function.__name__ not in vars(Tensor) and not any(function.__name__ in names for names in _namespaces):
        function.__name__ = name  # programs identify functions by this name


def _functions() -> list[tuple[str, FunctionType]]:
    """Return the public functions that can be overridden, by name."""
    return [
        (name, value)
        for namespace in _namespaces
        for name, value in namespace.items()
        if isinstance(value, FunctionType) and (name[0] != "_" or name == "_assert") and name not in _SILENT
    ]


def _members() -> list[tuple[str, Any]]:
    """Return the methods and properties of Tensor that check for overrides, by name."""
    return [
        (name, value)
        for name, value in _own_members.items()
        if isinstance(value, FunctionType | property) and name not in _SILENT_MEMBERS
    ]


def arm_for(values: Iterable[Any]) -> bool:
    """Install the override checks if one of these objects needs them and they are missing. Returns True if it did."""
    if _armed or not overriding(values):
        return False
    arm()
    return True


def again(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Retry a public function that refused its arguments if one of them overrides functions; otherwise raise the error
    again.
    """
    if arm_for((*args, *kwargs.values())):
        return function(*args, **kwargs)
    raise  # re-raises the exception being handled


# Functions that check no argument.
_SILENT = {
    "are_deterministic_algorithms_enabled", "broadcast_shapes", "fork_rng", "from_dlpack", "from_numpy",
    "get_default_device", "get_default_dtype", "get_deterministic_debug_mode", "get_num_interop_threads",
    "get_num_threads", "get_rng_state", "initial_seed", "is_deterministic_algorithms_warn_only_enabled",
    "is_storage", "is_tensor", "manual_seed", "seed", "set_default_device", "set_default_dtype",
    "set_default_tensor_type", "set_deterministic_debug_mode", "set_flush_denormal", "set_num_interop_threads",
    "set_num_threads", "set_printoptions", "set_rng_state", "typename", "use_deterministic_algorithms",
}  # fmt: skip
_SILENT_MEMBERS = {
    "__getattr__", "__hash__", "__init_subclass__", "__iter__", "__new__", "as_subclass", "base",
}  # fmt: skip
_MAKERS = {"as_tensor", "asarray", "tensor"}

# Operators that ask for the method of another name.
_OPERATORS = {
    "__abs__": "abs", "__add__": "add", "__radd__": "add", "__iadd__": "add_", "__ge__": "ge", "__gt__": "gt",
    "__le__": "le", "__lt__": "lt", "__ne__": "ne", "__ifloordiv__": "floor_divide_", "__imod__": "remainder_",
    "__imul__": "mul_", "__ipow__": "pow_", "__isub__": "sub_", "__itruediv__": "div_", "__matmul__": "matmul",
    "__mod__": "remainder", "__mul__": "mul", "__rmul__": "mul", "__neg__": "neg", "__pos__": "positive",
    "__pow__": "pow", "__rand__": "bitwise_and", "__ror__": "bitwise_or", "__rxor__": "bitwise_xor", "__sub__": "sub",
    "__truediv__": "div",
}  # fmt: skip
_OWN_OPERATORS = {
    "__and__", "__eq__", "__floordiv__", "__iand__", "__ilshift__", "__ior__", "__irshift__", "__ixor__", "__lshift__",
    "__or__", "__rdiv__", "__rfloordiv__", "__rlshift__", "__rmatmul__", "__rmod__", "__rpow__", "__rrshift__",
    "__rshift__", "__rsub__", "__rtruediv__", "__xor__",
}  # fmt: skip


def _door(*args: Any, _ask: Callable[..., Any], **kwargs: Any) -> Any:
    return _ask(args, kwargs)


@cache
def _door_code(count: int) -> CodeType:
    """Return the code of `_door` for a function that uses `count` variables of enclosing functions.

    The code must declare these variables, because the function keeps its cells, and must begin by copying the cells
    into its frame. Otherwise a debugger or IPython that reads `f_locals` of such a frame crashes the process.
    """
    if not count:
        return _door.__code__
    names = ", ".join(f"v{i}" for i in range(count))
    text = f"""
def around({names}):
    def _door(*args, _ask, **kwargs):
        return _ask(args, kwargs)
        {names}
    return _door
"""
    scope: dict[str, Any] = {}
    exec(compile(text, __file__, "exec"), scope)
    code: CodeType = scope["around"](*[None] * count).__code__
    return code


def _put_door(function: Any, shown: Any, asking: Callable[..., Any] = ask) -> None:
    """Replace a function's code by the override check. The former code becomes another function with its signature."""
    if not isinstance(function, FunctionType) or _is_door(function):
        return
    code = function.__code__
    define = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    define.__kwdefaults__ = function.__kwdefaults__
    define.__dict__.update(function.__dict__)
    define.__qualname__, define.__module__ = function.__qualname__, function.__module__
    define.__annotations__ = function.__annotations__
    function.__wrapped__ = define  # type: ignore[attr-defined]
    # Other threads may call it meanwhile, so the defaults fit the old code, too.
    function.__kwdefaults__ = {**(define.__kwdefaults__ or {}), "_ask": partial(asking, shown, define)}
    function.__code__ = _door_code(len(code.co_freevars)).replace(co_name=code.co_name)


def _is_door(function: FunctionType) -> bool:
    return "_ask" in (function.__kwdefaults__ or {})


# -- what programs ask about functions ------------------------------------------------------------------------


def overridable() -> set[Any]:
    """Return all callables that `__torch_function__` may override: functions, methods, getters and setters."""
    found: set[Any] = {function for _, function in _functions()}
    for _, value in _members():
        found |= {value.__get__, value.__set__} if isinstance(value, property) else {value}
    return found


def silent() -> set[Any]:
    """Return the public functions that no argument overrides."""
    named = {name: value for namespace in _namespaces for name, value in namespace.items()}
    members = [_own_members.get(name) for name in _SILENT_MEMBERS]
    return {named[name] for name in _SILENT | _MAKERS} | {x for x in members if isinstance(x, FunctionType)}


def name_of(function: Any) -> str | None:
    """Return the name of such a function in errors: `torch.Tensor.add`, `torch.Tensor.shape.__get__`; None for None."""
    owner = getattr(function, "__self__", None)
    for name, value in vars(Tensor).items():
        if value is function:
            return f"torch.Tensor.{name}"
        if value is owner and isinstance(owner, property):
            return f"torch.Tensor.{name}.{function.__name__}"
    for namespace in _namespaces:
        for name, value in namespace.items():
            if value is function:
                return f"{namespace.get('__name__', 'torch').replace('flambeau', 'torch', 1)}.{name}"
    return None
