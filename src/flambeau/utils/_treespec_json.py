"""Pytree specs as JSON in PyTorch's format: `treespec_dumps` and `treespec_loads` of torch.utils._pytree."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple

from flambeau.core.size import Size

_PROTOCOL = 1


class SerializedType(NamedTuple):
    """The name of a node's type in JSON and the functions that convert contexts.

    Attributes:
        name: The type's name; None if the program registered none.
        dump: `context -> value that json writes`; None for the context's own JSON, as text.
        load: The inverse of `dump`.
    """

    name: str | None
    dump: Callable[[Any], Any] | None = None
    load: Callable[[Any], Any] | None = None


class EnumEncoder(json.JSONEncoder):
    """A JSON encoder that writes members of enumerations by their class and name."""

    def default(self, o: Any) -> Any:
        if isinstance(o, Enum):
            kind = type(o)
            return {"__enum__": True, "fqn": f"{kind.__module__}:{kind.__qualname__}", "name": o.name}
        return super().default(o)


def enum_object_hook(obj: dict[str, Any]) -> Any:
    """Return the member of an enumeration that `EnumEncoder` wrote, or another object unchanged."""
    if "__enum__" not in obj:
        return obj
    module, _, path = obj["fqn"].partition(":")
    return _find_object(module, path)[obj["name"]]


def _find_object(module: str, path: str) -> Any:
    value: Any = import_module(module)
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _dump_default_dict(context: Any) -> Any:
    factory, keys = context
    kind = type(None) if factory is None else factory
    return {
        "default_factory_module": kind.__module__,
        "default_factory_name": kind.__qualname__,
        "dict_context": keys,
    }


def _load_default_dict(value: Any) -> Any:
    factory = value["default_factory_module"], value["default_factory_name"]
    # The class of None is not found by its name.
    return [None if factory[1] == "NoneType" else _find_object(*factory), value["dict_context"]]


def _dump_named_tuple(context: Any) -> str:
    name = _TYPES[context].name if context in _TYPES else None
    if name is None:
        raise NotImplementedError(
            f"Can't serialize TreeSpec of namedtuple class {context} because we didn't register a "
            "serializated_type_name. Please register using `_register_namedtuple`."
        )
    return name


def _load_named_tuple(name: str) -> Any:
    kind = _find_type(name)
    if kind is None:
        raise NotImplementedError(
            f"Can't deserialize TreeSpec of namedtuple class {name} because we couldn't find a serializated name."
        )
    return kind


_TYPES: dict[Any, SerializedType] = {
    tuple: SerializedType("builtins.tuple"),
    list: SerializedType("builtins.list"),
    dict: SerializedType("builtins.dict"),
    namedtuple: SerializedType("collections.namedtuple", _dump_named_tuple, _load_named_tuple),
    OrderedDict: SerializedType("collections.OrderedDict"),
    defaultdict: SerializedType("collections.defaultdict", _dump_default_dict, _load_default_dict),
    deque: SerializedType("collections.deque"),
    Size: SerializedType("torch.Size"),
}  # fmt: skip


def register_serialized_type(
    cls: type, name: str | None, dump: Callable[[Any], Any] | None = None, load: Callable[[Any], Any] | None = None
) -> None:  # fmt: skip
    """Register how specs of a class are written; the arguments are those of `SerializedType`.

    Raises:
        ValueError: If only one of `dump` and `load` is given.
    """
    if (dump is None) != (load is None):
        raise ValueError(
            f"Both to_dumpable_context and from_dumpable_context for {cls} must be None or registered."
        )
    _TYPES[cls] = SerializedType(name, dump, load)


def _find_type(name: str) -> Any:
    return next((kind for kind, found in reversed(_TYPES.items()) if found.name == name), None)


def dump_spec(spec: Any, protocol: int | None = None) -> str:
    """Return a spec as JSON.

    Raises:
        ValueError: If the protocol is unknown.
        NotImplementedError: If a node's class has no name for JSON.
        TypeError: If JSON cannot hold a context.
    """
    protocol = _check_protocol(_PROTOCOL if protocol is None else protocol)
    return json.dumps((protocol, _to_json(spec)), cls=EnumEncoder)


def load_spec(serialized: str, tree_spec: Callable[[Any, Any, list[Any]], Any], leaf: Any) -> Any:
    """Return the spec that `dump_spec` wrote.

    Args:
        serialized: The JSON.
        tree_spec: Makes the spec of a node of its type, context and children.
        leaf: The spec of a leaf.

    Raises:
        ValueError: If the protocol is unknown.
        NotImplementedError: If a type is not registered.
    """
    protocol, schema = json.loads(serialized)
    _check_protocol(protocol)
    return _from_json(schema, tree_spec, leaf)


def _check_protocol(protocol: int) -> int:
    if protocol != _PROTOCOL:
        raise ValueError(f"Unknown protocol {protocol}. Available protocols: [{_PROTOCOL}]")
    return protocol


def _to_json(spec: Any) -> dict[str, Any]:
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    kind = _TYPES.get(spec.type)
    if kind is None or kind.name is None:
        raise NotImplementedError(
            f"No registered serialization name for {spec.type} found. Please update your _register_pytree_node call "
            "with a `serialized_type_name` kwarg."
        )
    context = _dump_context(spec.context) if kind.dump is None else kind.dump(spec.context)
    children = [_to_json(child) for child in spec.children()]
    return {"type": kind.name, "context": context, "children_spec": children}


def _dump_context(context: Any) -> str:
    try:
        return json.dumps(context, cls=EnumEncoder)
    except TypeError as error:
        raise TypeError(
            "Unable to serialize context. Please make the context json dump-able, or register a custom serializer "
            "using _register_pytree_node."
        ) from error


def _from_json(schema: Any, tree_spec: Callable[[Any, Any, list[Any]], Any], leaf: Any) -> Any:
    name, context = schema["type"], schema["context"]
    if name is None and context is None and not schema["children_spec"]:
        return leaf
    kind = _find_type(name)
    if kind is None:
        raise NotImplementedError(f"Deserializing {name} in pytree is not registered.")
    load = _TYPES[kind].load
    value = json.loads(context, object_hook=enum_object_hook) if load is None else load(context)
    return tree_spec(kind, value, [_from_json(child, tree_spec, leaf) for child in schema["children_spec"]])
