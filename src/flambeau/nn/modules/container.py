"""Modules and parameters in sequences and dicts."""

from __future__ import annotations

import operator
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from flambeau.nn.modules.module import Module, indent
from flambeau.nn.modules.utils import typename
from flambeau.nn.parameter import Parameter
from flambeau.tensor.tensor import Tensor


def _place(length: int, idx: Any) -> int:
    """Return an index from 0 on. Raises IndexError if the index is out of range."""
    at = operator.index(idx)
    if not -length <= at < length:
        raise IndexError(f"index {at} is out of range")
    return at % length


class Container(Module):
    """A module whose submodules are keyword arguments. Deprecated."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        warnings.warn(
            "nn.Container is deprecated. All of it's functionality is now implemented in nn.Module. Subclass that "
            "instead.",
            FutureWarning,
            stacklevel=2,
        )
        for name, module in kwargs.items():
            self.add_module(name, module)


class _Row(Module):
    """The base of containers of modules by index."""

    def _renew(self, modules: Iterable[Any]) -> None:
        """Replace all submodules by `modules`, with their positions as names."""
        self._modules.clear()
        self._modules.update({str(i): module for i, module in enumerate(modules)})

    def _name_at(self, idx: Any) -> str:
        return list(self._modules)[_place(len(self), idx)]

    def __setitem__(self, idx: int, module: Module) -> None:
        setattr(self, self._name_at(idx), module)

    def __delitem__(self, idx: Any) -> None:
        modules = list(self)
        del modules[idx if isinstance(idx, slice) else _place(len(self), idx)]
        self._renew(modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def append(self, module: Module) -> Any:
        """Add a module at the end. Returns itself."""
        self.add_module(str(len(self)), module)
        return self

    def pop(self, key: Any) -> Module:
        """Take the module at an index out."""
        module: Module = self[key]
        del self[key]
        return module


class Sequential(_Row):
    """A sequence of modules, each of which is called with the result of the previous one.

    The arguments are the modules, or one `OrderedDict` from names to modules.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(args):
                self.add_module(str(i), module)

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            return type(self)(OrderedDict(list(self._modules.items())[idx]))
        return self._modules[self._name_at(idx)]

    def __add__(self, other: Any) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(
                f"add operator supports only objects of Sequential class, but {type(other)} is given."
            )
        return Sequential(*self, *other)

    def __iadd__(self, other: Any) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(
                f"add operator supports only objects of Sequential class, but {type(other)} is given."
            )
        return self.extend(list(other))

    def __mul__(self, other: int) -> Sequential:
        self._check_times(other)
        return Sequential(*chain.from_iterable([list(self)] * other))

    def __rmul__(self, other: int) -> Sequential:
        return self * other

    def __imul__(self, other: int) -> Sequential:
        self._check_times(other)
        return self.extend(list(self) * (other - 1))

    def _check_times(self, other: Any) -> None:
        if not isinstance(other, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(other)}")
        if other <= 0:
            raise ValueError(f"Non-positive multiplication factor {other} for {type(self)}")

    def insert(self, index: int, module: Module) -> Any:
        """Insert a module before the one at `index`. Returns the container.

        Raises:
            IndexError: If the index is out of range.
        """
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        n = len(self)
        if not -n <= index <= n:
            raise IndexError(f"Index out of range: {index}")
        modules = list(self)
        modules.insert(index + n if index < 0 else index, module)
        self._renew(modules)
        return self

    def extend(self, sequential: Iterable[Module]) -> Any:
        """Add modules at the end. Returns itself."""
        for module in sequential:
            self.append(module)
        return self


class ModuleList(_Row):
    """A list of modules. They are registered as submodules, unlike the modules in a plain list."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            return type(self)(list(self)[idx])
        return self._modules[self._name_at(idx)]

    def __iadd__(self, modules: Iterable[Module]) -> Any:
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        """Return a text that shows equal neighbours once, with the range of their indices."""
        if not len(self):
            return self._get_name() + "()"
        runs: list[tuple[int, int, str]] = []
        for i, text in enumerate([repr(module) for module in self]):
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], i, text)
            else:
                runs.append((i, i, text))
        lines = []
        for first, last, text in runs:
            where = f"({first})" if first == last else f"({first}-{last})"
            times = "" if first == last else f"{last - first + 1} x "
            lines.append(f"{where}: {times}{indent(text)}")
        return self._get_name() + "(\n  " + "\n  ".join(lines) + "\n)"

    def insert(self, index: int, module: Module) -> None:
        """Add a module before the one at `index`."""
        modules = list(self)
        modules.insert(index, module)
        self._renew(modules)

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add modules at the end. Returns itself.

        Raises:
            TypeError: If `modules` is not iterable.
        """
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"ModuleList.extend should be called with an iterable, but got {type(modules).__name__}"
            )
        for i, module in enumerate(modules, len(self)):
            self.add_module(str(i), module)
        return self


class ModuleDict(Module):
    """A dict of modules, in the order of insertion."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Remove all members."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove and return a module."""
        return self._modules.pop(key)

    def keys(self) -> Any:
        """Return the keys."""
        return self._modules.keys()

    def items(self) -> Any:
        """Return the keys and modules."""
        return self._modules.items()

    def values(self) -> Any:
        """Return the modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add the modules of a mapping, or of pairs (name, module).

        Raises:
            TypeError: If the argument is neither.
            ValueError: If an item is not a pair.
        """
        for key, module in _pairs(modules, "ModuleDict", "ModuleDict"):
            self[key] = module


def _pairs(given: Any, called: str, of: str) -> list[tuple[Any, Any]]:
    """Return the items of a mapping, or an iterable of pairs unchanged."""
    if not isinstance(given, Iterable):
        raise TypeError(
            f"{called}.update should be called with an iterable of key/value pairs, but got {type(given).__name__}"
        )
    if isinstance(given, (ModuleDict, ParameterDict, Mapping)):
        return list(given.items())
    pairs = []
    for i, pair in enumerate(given):
        if not isinstance(pair, Iterable):
            raise TypeError(f"{of} update sequence element #{i} should be Iterable; is{type(pair).__name__}")
        pair = tuple(pair)
        if len(pair) != 2:
            raise ValueError(f"{of} update sequence element #{i} has length {len(pair)}; 2 is required")
        pairs.append(pair)
    return pairs


# -- parameters -----------------------------------------------------------------------------------------


def _as_parameter(value: Any) -> Any:
    """Return a tensor as a parameter, other values unchanged."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _describe(value: Any, type_name: Callable[[Tensor], str]) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    size = "x".join([str(n) for n in value.shape])
    where = f" ({value.device})" if value.is_cuda else ""
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{kind} containing: [{type_name(value)} of size {size}{where}]"


class ParameterList(Module):
    """A list of parameters. Tensors become parameters; other values are stored unchanged."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            return type(self)([self[i] for i in range(*idx.indices(len(self)))])
        return getattr(self, str(_place(len(self), idx)))

    def __setitem__(self, idx: int, param: Any) -> None:
        setattr(self, str(_place(len(self), idx)), _as_parameter(param))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __iadd__(self, parameters: Iterable[Any]) -> Any:
        return self.extend(parameters)

    def append(self, value: Any) -> Any:
        """Append a module. Returns the list."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Any:
        """Add parameters at the end. Returns itself.

        Raises:
            TypeError: If `values` is not iterable, or is a tensor.
        """
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(
                f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}"
            )
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join([f"  ({i}): {_describe(p, lambda t: str(t.dtype))}" for i, p in enumerate(self)])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(Module):
    """A dict of parameters in the order of insertion. Tensors become parameters; other values are stored unchanged."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def _attribute(self, key: Any) -> str:
        if not isinstance(key, str):
            raise TypeError(
                f"Index given to ParameterDict cannot be used as a key as it is not a string (type is "
                f"'{type(key).__name__}'). Open an issue on github if you need non-string keys."
            )
        return key

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._attribute(key))

    def __setitem__(self, key: str, value: Any) -> None:
        attribute = self._attribute(key)
        self._keys[key] = None
        setattr(self, attribute, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, self._attribute(key))

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def copy(self) -> ParameterDict:
        """Return another dict with the same parameters."""
        return ParameterDict(OrderedDict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`; if there is none, first set it to `default`."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove all members."""
        for key in list(self._keys):
            del self[key]

    def pop(self, key: str) -> Any:
        """Remove and return a parameter."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last key and parameter."""
        key, _ = self._keys.popitem()
        self._keys[key] = None
        return key, self.pop(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if there is none."""
        return self[key] if key in self._keys else default

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """Return a new ParameterDict with `default` at each of the keys."""
        return ParameterDict(dict.fromkeys(keys, default))

    def keys(self) -> Any:
        """Return the keys."""
        return self._keys.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return the keys and parameters."""
        return [(key, self[key]) for key in self._keys]

    def values(self) -> Iterable[Any]:
        """Return the parameters."""
        return [self[key] for key in self._keys]

    def update(self, parameters: Any) -> None:
        """Add the parameters of a mapping or of pairs. Those of a plain dict are added in sorted order of keys."""
        ordered = isinstance(parameters, (OrderedDict, ParameterDict))
        pairs = _pairs(parameters, "ParametersDict", "ParameterDict")
        if isinstance(parameters, Mapping) and not ordered:
            pairs.sort()
        for key, value in pairs:
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join([f"  ({key}): {_describe(value, typename)}" for key, value in self.items()])

    def __call__(self, input: Any) -> Any:
        raise RuntimeError("ParameterDict should not be called.")

    def __or__(self, other: ParameterDict) -> ParameterDict:
        both = self.copy()
        both.update(other)
        return both

    def __ror__(self, other: ParameterDict) -> ParameterDict:
        both = other.copy()
        both.update(self)
        return both

    def __ior__(self, other: ParameterDict) -> Any:
        self.update(other)
        return self
