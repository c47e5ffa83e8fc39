"""The errors of PyTorch's argument parser.

# Note [Arguments of wrong types]
Problem: PyTorch's parser checks the types of all arguments first. Some functions here would accept what it refuses.
Rule: a public function compares its arguments with its signatures before it runs. The decorator `signatures` lists
them; otherwise they are the annotations of its parameters. A mismatch raises the parser's TypeError.
Cost: a function caches argument types that have matched (`Parser.fitting`). If the type does not decide, as for a list
of ints, the values are compared each time. The most frequent functions have a front (`public.behind`), which checks the
types of simple calls itself and leaves other calls to the comparison.
Functions of `torch.nn.functional` that PyTorch writes in Python pass most arguments to a parser later. `checking`
compares those before the call. Tensors and sizes, the first arguments of most calls, and the parameters that
`compares` names are compared by the bodies.
Exceptions: functions in `HOT` run immediately and are compared only if they fail.
Consequences: annotations of public functions are part of the interface. `Any` accepts every argument.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cache
from inspect import Parameter, Signature, signature, unwrap
from types import FunctionType, NoneType
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.dtype import INTEGRAL, PYTHON_TYPES, dtype
from flambeau.core.errors import RaceError, type_name
from flambeau.runtime.generator import Generator
from flambeau.tensor.arguments.integers import int_or_none, is_int, refuse_bool_tensors
from flambeau.tensor.arguments.torch_function import arm_for
from flambeau.tensor.signatures import signatures_of
from flambeau.tensor.tensor import Tensor

# Annotations that Python has no type for: an int or several, several ints, a tuple or list of tensors, any number.
IntOrTuple = Any
IntTuple = Any
TensorList = Any
Number = Any

HOT = {
    "cat", "empty", "full", "ones", "rand", "randn", "stack", "zeros",
    "Tensor.contiguous", "Tensor.copy_", "Tensor.expand", "Tensor.permute", "Tensor.reshape", "Tensor.to",
    "Tensor.transpose", "Tensor.unsqueeze", "Tensor.view",
}  # fmt: skip
"""What is called too often, and refuses too much itself, to compare its arguments first."""


# -- kinds of arguments ---------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A type of arguments that a parameter accepts.

    Attributes:
        name: PyTorch's name of the type.
        certain: Returns True for types all of whose values fit.
        fits: Returns True for values that fit.
    """

    name: str
    certain: Callable[[type], bool]
    fits: Callable[[Any], bool]


def _of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _one_of(*kinds: type) -> Callable[[type], bool]:
    return lambda kind: kind in kinds


def _never(kind: type) -> bool:
    return False


def _always(value: Any) -> bool:
    return True


def _is_index(value: Any) -> bool:
    """Return True for values with `__index__`, which includes tensors of one element but not bools.

    A tensor of dtype bool fits, as in PyTorch: functions refuse it as a size, and take it as a dimension.
    """
    if isinstance(value, Tensor):
        return value.meta.numel == 1 and value.meta.dtype.category <= INTEGRAL
    return int_or_none(value) is not None


def _is_real(value: Any) -> bool:
    """Return True for a number that is not complex: a Python number, a NumPy number, or a tensor without dimensions."""
    if isinstance(value, Tensor):
        return not (value.meta.ndim or value.requires_grad)
    return isinstance(value, float | int | np.number | np.bool_) and not isinstance(value, complex)


def _is_number(value: Any) -> bool:
    return isinstance(value, complex) or _is_real(value)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, dtype) or (isinstance(value, type) and value in PYTHON_TYPES)


def _convert_value(value: Any, kinds: Container[Kind]) -> Any:
    """Return the dtype of a Python type, and the number of a NumPy scalar or of a tensor that is a dimension.

    Functions read other values themselves: those of parameters without a type, and indices.
    """
    if _ANY in kinds or KINDS["index"] in kinds:
        return value
    if isinstance(value, type) and KINDS["dtype"] in kinds:
        return PYTHON_TYPES.get(value, value)
    if isinstance(value, Tensor) and KINDS["IntOrTuple"] in kinds:
        return int_or_none(value)
    if isinstance(value, np.bool_):
        return float(value)  # as PyTorch reads it
    return value.item() if isinstance(value, np.generic) else value


def _is_called(name: str) -> Callable[[Any], bool]:
    """Return a test for a class that this module cannot import, because that module binds public names."""
    return lambda value: type(value).__name__ == name


def _is_int_or_tuple(value: Any) -> bool:
    one = _is_index if isinstance(value, Tensor) else is_int
    return one(value) or _is_int_tuple(value)


def _is_int_tuple(value: Any) -> bool:
    return isinstance(value, tuple | list) and _wrong_place(value) is None


def _wrong_place(values: Any) -> int | None:
    """Return the position of the first element that is not an int. For bools only the first position counts."""
    wrong = (
        at for at, each in enumerate(values) if not _is_index(each) and not (at and isinstance(each, bool))
    )
    return next(wrong, None)


def _all_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple | list) and all(map(fits, value))


KINDS: dict[str, Kind] = {
    "Tensor": Kind("Tensor", lambda kind: issubclass(kind, Tensor), _of(Tensor)),
    "bool": Kind("bool", _one_of(bool), _of(bool)),
    "int": Kind("int", _one_of(int), is_int),
    "index": Kind("int", _one_of(int), _is_index),
    "float": Kind("float", _one_of(float, int), _is_real),
    "Number": Kind("Number", _one_of(float, int, bool, complex), _is_number),
    "str": Kind("str", _one_of(str), _of(str)),
    "dtype": Kind("torch.dtype", _one_of(dtype), _is_dtype),
    "layout": Kind("torch.layout", _never, _is_called("layout")),
    "memory_format": Kind("torch.memory_format", _never, _is_called("memory_format")),
    "Generator": Kind("torch.Generator", _one_of(Generator), _of(Generator)),
    "IntOrTuple": Kind("tuple of ints", _one_of(int), _is_int_or_tuple),
    "IntTuple": Kind("tuple of ints", _never, _is_int_tuple),
    "FloatTuple": Kind("tuple of floats", _never, _all_of(_is_real)),
    "NumberTuple": Kind("tuple of Scalars", _never, _all_of(_is_number)),
    "TensorList": Kind("tuple of Tensors", _never, _all_of(_of(Tensor))),
    "None": Kind("None", _one_of(NoneType), _of(NoneType)),
}
"""The annotations that say a type."""

_ANY = Kind("", _always, _always)


# PyTorch's parser takes more for its type SymInt than for int: see `_is_index`. These are the names of such
# parameters, and the functions that have one of these names for a plain int.
_INDEX_NAMES = {
    "N", "diagonal", "end", "groups", "high", "ignore_index", "index", "k", "length", "low", "m", "minlength", "n",
    "num_samples", "output_size", "padding_idx", "repeats", "sections", "size", "split_size", "split_size_or_sections",
    "start", "step", "storage_offset",
}  # fmt: skip
_WITHOUT_INDEX = {
    "diag", "diff", "dsplit", "embedding_bag", "fft_fftfreq", "fft_rfftfreq", "hsplit", "istft", "linalg_matrix_power",
    "matrix_power", "polygamma", "polygamma_", "rot90", "special_polygamma", "unfold", "vander", "vsplit",
}  # fmt: skip


@cache
def _kinds(function: str, name: str, annotation: str) -> tuple[Kind, ...]:
    """Return the kinds of values that a parameter with this name and annotation accepts."""
    names = annotation.replace("Given", "Tensor | None").split(" | ")
    if name in _INDEX_NAMES and function not in _WITHOUT_INDEX:
        names = ["index" if each == "int" else each for each in names]
    return tuple([KINDS[name] for name in names]) if KINDS.keys() >= set(names) else (_ANY,)


# -- signatures -----------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    """A parameter of a signature."""

    name: str
    kinds: tuple[Kind, ...]
    optional: bool
    by_keyword: bool  # not by position

    def fits(self, value: Any) -> bool:
        return any(kind.fits(value) for kind in self.kinds)

    def certain(self, kind: type) -> bool:
        return any(each.certain(kind) for each in self.kinds)


class CallSignature:
    """One of the accepted ways to call a function.

    Attributes:
        text: The parameters as text; empty if they are those of the definition.
        parameters: The parameters, positional ones first.
        places: Greatest number of positional arguments.
        least: Least number of arguments.
        more: Kind of further positional arguments; None if there are none.
        others: True if further keywords are left to the function.
        spreads: True if the only argument is several ints, and f(1, 2) means f((1, 2)).
    """

    def __init__(
        self, text: str, parameters: list[Expected], more: Expected | None = None, others: bool = False
    ) -> None:
        self.text = text
        self.parameters = parameters
        self.more, self.others = more, others
        self.places = sum(not parameter.by_keyword for parameter in parameters)
        self.least = sum(not parameter.optional for parameter in parameters)
        self.spreads = self.places == 1 and KINDS["IntTuple"] in parameters[0].kinds

    def refusal(
        self,
        args: tuple[Any, ...],
        given: dict[str, Any],
        types_only: bool = False,
    ) -> str | None:
        """Return PyTorch's description of what is wrong with a call, or None if the call fits.

        Args:
            args: The arguments by position.
            given: Those by keyword.
            types_only: Look at types alone; Python reports arguments that are missing, unknown or too many.
        """
        if self.spreads and args and _is_index(args[0]):
            args = (args,)
        if len(args) > self.places and self.more is None:
            return None if types_only else self._too_many(len(args))
        seen = 0
        for at, parameter in enumerate(self.parameters):
            by_name = parameter.name in given
            seen += by_name
            placed = at < len(args) and not parameter.by_keyword
            if placed and by_name and not types_only:
                return f"got multiple values for argument '{parameter.name}'"
            if not (placed or by_name):
                if types_only or parameter.optional or (self.more and not parameter.by_keyword):
                    continue
                return self._missing(len(args), given)
            value = args[at] if placed else given[parameter.name]
            if not parameter.fits(value):
                place = f" (position {at + 1})" if placed else ""
                return _objection(parameter, value, place)
        for at, value in enumerate(args[self.places :], self.places):
            if self.more is not None and not self.more.fits(value):
                return _objection(self.more, value, f" (position {at + 1})")
        if seen < len(given) and not (self.others or types_only):
            return self._unknown(given)
        return None

    def leaving(self, own: Container[str]) -> CallSignature:
        """Return this signature without type checks of the parameters in `own`, and of those of several numbers or
        names.
        """
        parameters = [
            each._replace(kinds=(_ANY,))
            if each.name in own or each.name in _OWN_NAMES or not _SCALARS.issuperset(each.kinds)
            else each
            for each in self.parameters
        ]
        return CallSignature(self.text, parameters, self.more, self.others)

    def with_floats(
        self, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call that fits the signature, converted to floats where a parameter is a float."""
        args_by_name = {parameter.name: value for parameter, value in self._pairs(args, given)}
        for parameter in self.parameters:
            value = args_by_name.get(parameter.name)
            if parameter.kinds[0] is KINDS["float"] and value is not None and type(value) is not int:
                args_by_name[parameter.name] = float(value)
        places = [args_by_name[parameter.name] for parameter in self.parameters[: len(args)]]
        return (*places, *args[len(places) :]), {
            name: args_by_name.get(name, value) for name, value in given.items()
        }

    def _unknown(self, given: dict[str, Any]) -> str | None:
        names = {parameter.name for parameter in self.parameters} | {"out"}
        unknown = next((name for name in given if name not in names), None)
        return unknown and f"got an unexpected keyword argument '{unknown}'"

    def is_certain(self, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
        """Return True if all calls with arguments of these types fit the signature, given that this one does."""
        if self.spreads and args and type(args[0]) is int:
            return all(type(value) is int for value in args) and not given
        if len(args) > self.places:
            return False
        return all(parameter.certain(type(value)) for parameter, value in self._pairs(args, given))

    def refuse_bool_tensors(self, function: str, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Raise RuntimeError, like PyTorch, if a tensor of dtype bool is used as an index or a count."""
        for parameter, value in self._pairs(args, given):
            if isinstance(value, Tensor) and parameter.kinds[0] is KINDS["index"]:
                refuse_bool_tensors((value,), function, parameter.name)

    def _pairs(self, args: tuple[Any, ...], given: dict[str, Any]) -> list[tuple[Expected, Any]]:
        named = {parameter.name: parameter for parameter in self.parameters}
        pairs = [*zip(self.parameters, args, strict=False)]
        return pairs + [(named[name], value) for name, value in given.items() if name in named]

    def _too_many(self, count: int) -> str:
        least = sum(not (each.optional or each.by_keyword) for each in self.parameters)
        takes = f"{self.places}" if least == self.places else f"from {least} to {self.places}"
        plural = "" if self.places == 1 else "s"
        return (
            f"takes {takes} positional argument{plural} but {count} {'was' if count == 1 else 'were'} given"
        )

    def _missing(self, placed: int, given: dict[str, Any]) -> str:
        missing = [
            f'"{each.name}"'
            for at, each in enumerate(self.parameters)
            if not each.optional and each.name not in given and (at >= placed or each.by_keyword)
        ]
        return f"missing {len(missing)} required positional arguments: {', '.join(missing)}"


def _objection(parameter: Expected, value: Any, place: str) -> str:
    """Return PyTorch's text for the type that a parameter expects and the type of the argument at `place`."""
    expected, name = parameter.kinds[0].name, parameter.name
    if expected == "tuple of ints" and isinstance(value, tuple | list):
        at = _wrong_place(value) or 0
        kind = type_name(value[at])
        if at:
            return (
                f"argument '{name}' failed to unpack the object at pos {at + 1} with error "
                f'"type must be {expected},but got {kind}"'
            )
        return f"argument '{name}'{place} must be {expected}, but found element of type {kind} at pos {at}"
    return f"argument '{name}'{place} must be {expected}, not {type_name(value)}"


def _parse_listed(function: str, text: str) -> CallSignature:
    """Return the signature that a line of `signatures` has."""
    parameters, by_keyword = [], False
    for part in filter(None, text.split(", ")):
        if part == "*":
            by_keyword = True
            continue
        name, _, annotation = part.partition(": ")
        kinds = _kinds(function, name, annotation.removesuffix("="))
        parameters.append(Expected(name, kinds, annotation.endswith("="), by_keyword))
    return CallSignature(text, parameters)


def stated_signature(define: Callable[..., Any]) -> Signature:
    """Return the signature in a function's source, below its decorators, ignoring `__signature__`.

    Raises:
        ValueError: If it is built in.
    """
    innermost: Any = unwrap(define)
    if not hasattr(innermost, "__code__"):
        raise ValueError(f"{define!r} is built in and has no signature")
    bare = FunctionType(innermost.__code__, {}, "f", innermost.__defaults__, innermost.__closure__)
    bare.__kwdefaults__, bare.__annotations__ = innermost.__kwdefaults__, innermost.__annotations__
    return signature(bare)


def _read_annotations(define: Callable[..., Any], function: str, method: bool) -> CallSignature:
    """Return the signature that a function's own annotations state, without the tensor of a method."""
    parameters, more, others = [], None, False
    for parameter in [*stated_signature(define).parameters.values()][method:]:
        if parameter.kind is Parameter.VAR_POSITIONAL:
            kinds = _kinds(function, parameter.name, str(parameter.annotation))
            more = Expected(parameter.name, kinds, True, False)
        elif parameter.kind is Parameter.VAR_KEYWORD:
            others = True
        elif parameter.name != "out" or parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            optional = parameter.default is not Parameter.empty
            by_keyword = parameter.kind is Parameter.KEYWORD_ONLY
            kinds = _kinds(function, parameter.name, str(parameter.annotation))
            parameters.append(Expected(parameter.name, kinds, optional, by_keyword))
    return CallSignature("", parameters, more, others)


def _lasts(kind: Any) -> bool:
    """Return True for names, and for types that exist as long as the process. A program's type would keep its module
    alive.
    """
    return not isinstance(kind, type) or kind.__module__.partition(".")[0] in (
        "builtins",
        "flambeau",
        "torch",
    )


class Parser:
    """The signatures of one public function, with a cache of calls that fit.

    Attributes:
        name: The name of the function in errors.
        signatures: The ways to call it.
        fitting: Types of arguments, and names and types of keywords, that fit whatever the values are.
        other_names: For each signature, names that only the definition has -> those of its parameters at the same
            positions.
    """

    def __init__(self, define: Callable[..., Any], name: str, method: bool, fitting: set[Any]) -> None:
        self.name, self.method, self.fitting = name.removeprefix("F."), method, fitting
        own = _read_annotations(define, self.name, method)
        listed = signatures_of(name, method)
        self.signatures = [_parse_listed(self.name, text) for text in listed] or [own]
        taken = {parameter.name for signature in self.signatures for parameter in signature.parameters}
        self.other_names = [
            {
                other.name: its.name
                for other, its in zip(own.parameters, signature.parameters, strict=False)
                if not (other.by_keyword or its.by_keyword) and other.name not in taken
            }
            for signature in self.signatures
        ]

    def mistake(self, args: tuple[Any, ...], given: dict[str, Any]) -> TypeError | None:
        """Return the TypeError of a call that fits no signature; None if the call fits."""
        kinds = (*map(type, args), *given, *map(type, given.values()))
        args = args[self.method :]
        for each, other_names in zip(self.signatures, self.other_names, strict=True):
            named = {other_names.get(name, name): value for name, value in given.items()}
            if (
                len(named) == len(given) and each.refusal(args, named) is None
            ):  # two names may denote one parameter
                if not each.is_certain(args, named):
                    each.refuse_bool_tensors(self.name, args, named)
                elif all(_lasts(kind) for kind in kinds):
                    self.fitting.add(kinds)
                return None
        named = {self.other_names[0].get(name, name): value for name, value in given.items()}
        return TypeError(f"{self.name}() {self._refusal(args, named)}".replace("() argument", "(): argument"))

    def convert(self, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call that fits, as the dtypes and Python's numbers for which they stand."""
        placed = args[self.method :]
        for each, other_names in zip(self.signatures, self.other_names, strict=True):
            named = {other_names.get(name, name): value for name, value in given.items()}
            if each.refusal(placed, named) is None:
                kinds = {parameter.name: parameter.kinds for parameter in each.parameters}
                pairs = zip(each.parameters, placed, strict=False)
                first = [_convert_value(value, parameter.kinds) for parameter, value in pairs]
                if each.spreads:  # several numbers may stand for one tuple
                    first = []
                values = (*args[: self.method], *first, *placed[len(first) :])
                return values, {
                    name: _convert_value(value, kinds.get(other_names.get(name, name), ()))
                    for name, value in given.items()
                }
        return args, given

    def _refusal(self, args: tuple[Any, ...], given: dict[str, Any]) -> str:
        count = len(args) + len(given)
        possible = [each for each in self.signatures if each.least <= count <= len(each.parameters)]
        if len(self.signatures) == 1 or len(possible) == 1:
            refusal = (possible or self.signatures)[0].refusal(args, given)
            if refusal is not None:
                return refusal
        got = [type_name(value) for value in args] + [f"{k}={type_name(v)}" for k, v in given.items()]
        lines = "".join(f"\n * ({each.text.replace('=', '')})" for each in self.signatures)
        return f"received an invalid combination of arguments - got ({', '.join(got)}), but expected one of:{lines}\n"


# -- functions that PyTorch writes in Python --------------------------------------------------------------------

_SCALARS = {KINDS[name] for name in ("bool", "int", "index", "float", "Number", "Tensor", "dtype", "None")}
_OWN_NAMES = {
    "align_corners", "antialias", "inplace", "recompute_scale_factor", "reduce", "return_indices", "size_average",
    "_stacklevel",
}  # fmt: skip
"""Parameters that these functions test for their truth, or that only some calls use."""
_KINDS_OF_BODIES = {"Any", "Given", "IntOrTuple", "IntTuple", "Tensor", "Tensor | None"}
"""Annotations of first parameters that every body compares, so that most calls need no comparison before."""


def checking(define: Any, name: str, own: Container[str] = ()) -> Any:
    """Return `define` with its arguments compared first, as by the functions that PyTorch's own calls in its place.

    Args:
        define: A function that PyTorch writes in Python.
        name: Its name in errors.
        own: Parameters that only the function's body can compare.
    """
    if not isinstance(define, FunctionType):
        return define
    fitting: set[Any] = set()  # types of arguments that need no comparison
    built: list[CallSignature] = []
    free = _count_free(define, own)

    def mistake(args: tuple[Any, ...], given: dict[str, Any], kinds: tuple[Any, ...]) -> TypeError | None:
        if not built:
            built.append(_read_annotations(define, name, False).leaving(own))
        refusal = built[0].refusal(args, given, types_only=True)
        if refusal is None and built[0].is_certain(args, given) and all(_lasts(kind) for kind in kinds):
            fitting.add(kinds)
        return None if refusal is None else TypeError(f"{name}(): {refusal}")

    def call(*args: Any, **given: Any) -> Any:
        if given or len(args) > free:
            kinds = (*map(type, args), *given, *map(type, given.values())) if given else (*map(type, args),)
            if kinds not in fitting:
                refusal = mistake(args, given, kinds)
                if refusal is not None:
                    if arm_for((*args, *given.values())):
                        return call(*args, **given)
                    raise refusal
                if kinds not in fitting:
                    args, given = built[0].with_floats(args, given)
        try:
            return define(*args, **given)
        except RaceError:
            raise
        except Exception as error:
            worded = isinstance(error, ValueError | RuntimeError)
            refusal = None if worded else explain_mismatch(define, name, args, given, False)
            if refusal is None or str(error).startswith(f"{name}(): argument "):
                raise
            raise refusal from error

    return standing_for(call, define)


def _count_free(define: FunctionType, own: Container[str]) -> int:
    """Return the number of leading arguments that the function's body compares: tensors, sizes and listed
    parameters.
    """
    names = define.__code__.co_varnames[: define.__code__.co_argcount]
    for at, name in enumerate(names):
        if not (name in own or name in _OWN_NAMES or define.__annotations__.get(name) in _KINDS_OF_BODIES):
            return at
    return len(names)


def standing_for(call: Any, define: FunctionType) -> Any:
    """Copy name, documentation and signature of `define` to `call`, the function that wraps it."""
    call.__name__, call.__qualname__ = define.__name__, define.__qualname__
    call.__module__, call.__doc__ = define.__module__, define.__doc__
    call.__annotations__, call.__wrapped__ = define.__annotations__, define
    return call


def explain_mismatch(
    define: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    given: dict[str, Any],
    method: bool,
) -> TypeError | None:
    """Return the TypeError of the first argument that is not of its parameter's type; None if all are."""
    mistake = _read_annotations(define, name, method).refusal(args[method:], given, True)
    return None if mistake is None else TypeError(f"{name}(): {mistake}")
