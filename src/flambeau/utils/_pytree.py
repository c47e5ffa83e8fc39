"""torch.utils._pytree: nested containers as a list of their leaves and a `TreeSpec`, which describes the nesting.

Nodes are tuples, lists, dicts, named tuples, OrderedDict, defaultdict, deque, torch.Size, torch.return_types, and types
that the program registers. All other values, including None, are leaves; `is_leaf(x)` makes further values leaves.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeAlias

from flambeau.core.public_names import explain_absent_names, publish
from flambeau.core.size import Size
from flambeau.tensor.arguments.return_types import NamedResult
from flambeau.utils import _treespec_json as _json
from flambeau.utils._treespec_json import EnumEncoder, enum_object_hook  # noqa: F401

__all__ = [
    "SUPPORTED_NODES", "Context", "DumpableContext", "FlattenFn", "FromDumpableContextFn", "GetAttrKey", "KeyPath",
    "LeafSpec", "MappingKey", "NodeDef", "PyTree", "PyTreeSpec", "SequenceKey", "ToDumpableContextFn", "TreeSpec",
    "UnflattenFn", "arg_tree_leaves", "is_namedtuple", "is_namedtuple_class", "is_namedtuple_instance", "is_structseq",
    "is_structseq_class", "is_structseq_instance", "key_get", "keystr", "map_only", "register_pytree_node", "tree_all",
    "tree_all_only", "tree_any", "tree_any_only", "tree_flatten", "tree_flatten_with_path", "tree_is_leaf", "tree_iter",
    "tree_leaves", "tree_leaves_with_path", "tree_map", "tree_map_", "tree_map_only", "tree_map_only_",
    "tree_map_with_path", "tree_structure", "tree_unflatten", "treespec_dumps", "treespec_leaf", "treespec_loads",
    "treespec_pprint",
]  # fmt: skip

PyTree: TypeAlias = Any
Context: TypeAlias = Any
DumpableContext: TypeAlias = Any
FlattenFn = Callable[[Any], tuple[list[Any], Any]]
UnflattenFn = Callable[[Iterable[Any], Any], Any]
ToDumpableContextFn = Callable[[Any], Any]
FromDumpableContextFn = Callable[[Any], Any]
IsLeaf = Callable[[Any], bool] | None
Kinds = type | tuple[type, ...] | Callable[[Any], bool]


# -- where leaves are -----------------------------------------------------------------------------------


class SequenceKey(NamedTuple):
    """A place in a sequence."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        return sequence[self.idx]


class MappingKey(NamedTuple):
    """A key of a mapping."""

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        return mapping[self.key]


class GetAttrKey(NamedTuple):
    """An attribute."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: Any) -> Any:
        return getattr(obj, self.name)


KeyPath = tuple[Any, ...]


def keystr(kp: KeyPath) -> str:
    """Return a path as it would be written in Python: "['a'][0]"."""
    return "".join([str(key) for key in kp])


def key_get(obj: Any, kp: KeyPath) -> Any:
    """Return the value at a path."""
    for key in kp:
        obj = key.get(obj)
    return obj


# -- kinds of nodes -------------------------------------------------------------------------------------


class NodeDef(NamedTuple):
    """The functions that flatten and unflatten nodes of one type.

    Attributes:
        flatten_fn: `node -> (children, context)`.
        unflatten_fn: `(children, context) -> node`.
        keys: `node -> keys of the children`; None if unknown.
    """

    type: Any
    flatten_fn: FlattenFn
    unflatten_fn: UnflattenFn
    keys: Callable[[Any], list[Any]] | None


def _sequence_keys(node: Any) -> list[Any]:
    return [SequenceKey(i) for i in range(len(node))]


def _mapping_keys(node: Any) -> list[Any]:
    return [MappingKey(key) for key in node]


def _of_mapping(kind: type) -> NodeDef:
    return NodeDef(
        kind,
        lambda d: (list(d.values()), list(d)),
        lambda values, keys: kind(zip(keys, values, strict=True)),
        _mapping_keys,
    )


def _list_flatten(d: list[Any]) -> tuple[list[Any], Context]:
    """Return the elements, and None."""
    return d, None


def _list_flatten_with_keys(d: list[Any]) -> tuple[list[tuple[Any, Any]], Context]:
    """Return pairs of a key and an element, and None."""
    return list(zip(_sequence_keys(d), d, strict=True)), None


def _list_unflatten(values: Iterable[Any], context: Context) -> list[Any]:
    """Return the list of values that `_list_flatten` took from a list."""
    return list(values)


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], Context]:
    return list(d.values()), list(d)


def _dict_flatten_with_keys(d: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], Context]:
    """Return pairs of a key's place and a value, and the keys."""
    return list(zip(_mapping_keys(d), d.values(), strict=True)), list(d)


def _dict_unflatten(values: Iterable[Any], context: Context) -> dict[Any, Any]:
    """Return the dict of what `_dict_flatten` returned."""
    return dict(zip(context, values, strict=True))


def _namedtuple_flatten(d: tuple[Any, ...]) -> tuple[list[Any], Context]:
    """Return the fields' values, and the class."""
    return list(d), type(d)


def _namedtuple_unflatten(values: Iterable[Any], context: Context) -> Any:
    """Return the named tuple of what `_namedtuple_flatten` returned."""
    return context(*values)


SUPPORTED_NODES: dict[Any, NodeDef] = {
    tuple: NodeDef(tuple, lambda t: (list(t), None), lambda values, _: tuple(values), _sequence_keys),
    list: NodeDef(list, lambda x: (x, None), lambda values, _: list(values), _sequence_keys),
    dict: _of_mapping(dict),
    namedtuple: NodeDef(
        namedtuple,
        _namedtuple_flatten,
        _namedtuple_unflatten,
        lambda t: [GetAttrKey(name) for name in t._fields],
    ),
    OrderedDict: _of_mapping(OrderedDict),
    defaultdict: NodeDef(
        defaultdict,
        lambda d: (list(d.values()), [d.default_factory, list(d)]),
        lambda values, context: defaultdict(context[0], zip(context[1], values, strict=True)),
        _mapping_keys,
    ),
    deque: NodeDef(
        deque, lambda d: (list(d), d.maxlen), lambda values, most: deque(values, maxlen=most), _sequence_keys
    ),
    Size: NodeDef(Size, lambda s: (list(s), None), lambda values, _: tuple(values), _sequence_keys),
}  # fmt: skip


def register_pytree_node(
    cls: type, flatten_fn: FlattenFn, unflatten_fn: UnflattenFn, *, serialized_type_name: str | None = None,
    to_dumpable_context: Any = None, from_dumpable_context: Any = None, flatten_with_keys_fn: Any = None,
) -> None:  # fmt: skip
    """Register a class whose instances are nodes.

    Args:
        flatten_fn: Returns an instance's children and a context, from which the instance can be rebuilt.
        unflatten_fn: Rebuilds an instance from children and context.
        flatten_with_keys_fn: Like `flatten_fn`, with (key, child) pairs.
        serialized_type_name: The class's name in the JSON of `treespec_dumps`.
        to_dumpable_context: Returns what JSON holds in place of a context.
        from_dumpable_context: The inverse of `to_dumpable_context`.

    Raises:
        ValueError: If the class is registered already, or one of the last two functions is missing.
    """
    if cls in SUPPORTED_NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    _json.register_serialized_type(cls, serialized_type_name, to_dumpable_context, from_dumpable_context)
    keys = (
        None
        if flatten_with_keys_fn is None
        else lambda node: [key for key, _ in flatten_with_keys_fn(node)[0]]
    )
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, keys)


_register_pytree_node = register_pytree_node  # its older name


def _register_namedtuple(cls: type, *, serialized_type_name: str) -> None:
    """Register the name of a named tuple's class in the JSON of `treespec_dumps`."""
    _json.register_serialized_type(cls, serialized_type_name)


def register_dataclass(
    cls: type, *, field_names: Sequence[str] | None = None, drop_field_names: Sequence[str] | None = None,
    serialized_type_name: str | None = None,
) -> None:  # fmt: skip
    """Register a dataclass, or a class with such a constructor, whose instances are nodes with fields as children.

    Fields that are None are part of the structure.

    Args:
        field_names: The fields, arguments of the constructor; all of a dataclass without them.
        drop_field_names: Fields of the dataclass that the node loses.
        serialized_type_name: The class's name in the JSON of `treespec_dumps`.

    Raises:
        ValueError: If the names are not those of the dataclass, or missing for another class.
    """
    names = _field_names(cls, field_names, set(drop_field_names or ()))

    def flatten(obj: Any) -> tuple[list[Any], Context]:
        values = {name: getattr(obj, name) for name in names}
        flat = [name for name, value in values.items() if value is not None]
        return [values[name] for name in flat], [flat, [name for name in names if name not in flat]]

    def flatten_with_keys(obj: Any) -> tuple[list[Any], Context]:
        values, (flat, _) = flatten(obj)
        return [(GetAttrKey(name), value) for name, value in zip(flat, values, strict=True)], flat

    def unflatten(values: Iterable[Any], context: Context) -> Any:
        return cls(**dict(zip(context[0], values, strict=True)), **dict.fromkeys(context[1]))

    register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=serialized_type_name,
        flatten_with_keys_fn=flatten_with_keys,
    )


def _field_names(cls: type, names: Sequence[str] | None, dropped: set[str]) -> list[str]:
    """Return the fields that are children of a class's instances."""
    if not is_dataclass(cls):
        if names is None:
            raise ValueError(
                f"field_names must be specified with a list of all fields used to initialize {cls}, as it is not a "
                "dataclass."
            )
        return list(names)
    own = [field.name for field in fields(cls) if field.init]
    if names is None:
        return own
    missing, unexpected = set(own) - dropped - set(names), set(names) - (set(own) - dropped)
    if missing or unexpected:
        text = "field_names does not include all dataclass fields.\n"
        if missing:
            text += (
                f"Missing fields in `field_names`: {missing}. If you want to include these fields in the pytree, "
                "please add them to `field_names`, otherwise please add them to `drop_field_names`.\n"
            )
        if unexpected:
            text += (
                f"Unexpected fields in `field_names`: {unexpected}. Please remove these fields, or add them to "
                "`drop_field_names`.\n"
            )
        raise ValueError(text)
    return list(names)


class ConstantNode(NamedTuple):
    """The context of a node without children, which is its value."""

    value: Any


def register_constant(cls: type) -> None:
    """Register a class whose instances are nodes without children: their values are part of the structure.

    Raises:
        TypeError: If instances are compared by identity or have no hash.
    """
    if cls.__eq__ is object.__eq__:
        raise TypeError("register_constant(cls) expects `cls` to have a non-default `__eq__` implementation.")
    if cls.__hash__ is None:
        raise TypeError(
            "register_constant(cls) expects `cls` to have a non-default `__hash__` implementation."
        )
    register_pytree_node(
        cls,
        lambda value: ([], ConstantNode(value)),
        lambda _, context: context.value,
        flatten_with_keys_fn=lambda value: ([], ConstantNode(value)),
    )
    CONSTANT_NODES.add(cls)


CONSTANT_NODES: set[type] = set()


def is_constant_class(cls: type) -> bool:
    """Return True for a class that `register_constant` registered."""
    return isinstance(cls, type) and cls in CONSTANT_NODES


def _kind_of(tree: Any) -> Any:
    return namedtuple if is_namedtuple_instance(tree) and type(tree) not in SUPPORTED_NODES else type(tree)


def _definition(tree: Any, is_leaf: IsLeaf = None) -> NodeDef | None:
    """Return the `NodeDef` of a value; None for a leaf."""
    if is_leaf is not None and is_leaf(tree):
        return None
    kind = _kind_of(tree)
    found = SUPPORTED_NODES.get(kind)
    if found is None and is_structseq_class(kind):
        return NodeDef(kind, lambda t: (list(t), None), lambda values, _: kind(values), _sequence_keys)
    return found


def is_namedtuple(obj: Any) -> bool:
    """Return True if it is an instance or a class that `namedtuple` or NamedTuple made."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def is_namedtuple_class(cls: Any) -> bool:
    """Return True for a class that `namedtuple` or NamedTuple created."""
    if not (isinstance(cls, type) and issubclass(cls, tuple)):
        return False
    fields = getattr(cls, "_fields", None)
    return isinstance(fields, tuple) and all(type(field) is str for field in fields)


_get_node_type = _kind_of


def is_namedtuple_instance(obj: Any) -> bool:
    """Return True for an instance of a class that `namedtuple` or NamedTuple created."""
    return is_namedtuple_class(type(obj))


def is_structseq(obj: Any) -> bool:
    """Return True if the object is a class of torch.return_types or an instance of such a class."""
    return is_structseq_class(obj if isinstance(obj, type) else type(obj))


def is_structseq_class(cls: Any) -> bool:
    """Return True if the object is a class of torch.return_types."""
    return isinstance(cls, type) and issubclass(cls, NamedResult) and cls is not NamedResult


def is_structseq_instance(obj: Any) -> bool:
    """Return True if it is an instance of one of torch.return_types."""
    return is_structseq_class(type(obj))


# -- how leaves are nested ------------------------------------------------------------------------------


class TreeSpec:
    """The nesting of leaves: the node's type, its context, and the specs of its children. Specs can be compared."""

    def __init__(self, type: Any, context: Any, children: Iterable[TreeSpec]) -> None:
        self.type = type
        self._context = context
        self._children = list(children)
        self.num_nodes = 1 + sum(child.num_nodes for child in self._children)
        self.num_leaves = sum(child.num_leaves for child in self._children)
        self.num_children = len(self._children)

    @property
    def context(self) -> Any:
        return self._context

    @property
    def children_specs(self) -> list[TreeSpec]:
        return self._children

    def children(self) -> list[TreeSpec]:
        """Return the specs of its children."""
        return list(self._children)

    def child(self, index: int) -> TreeSpec:
        """Return the spec of one child."""
        return self._children[index]

    def is_leaf(self) -> bool:
        """Return True if it is that of a leaf."""
        return False

    def __repr__(self, indent: int = 0) -> str:
        begin = f"TreeSpec({self.type.__name__}, {self._context}, ["
        between = ",\n" + " " * (indent + 2)
        return begin + between.join([child.__repr__(indent + 2) for child in self._children]) + "])"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeSpec):
            return NotImplemented
        return (self.type, self._context, self._children) == (other.type, other._context, other._children)

    def __hash__(self) -> int:
        context = self._context
        if self.type in (dict, OrderedDict, defaultdict) or isinstance(context, list):
            context = repr(context)
        return hash((self.type, context, tuple(self._children)))

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Return a tree of this structure, with `leaves` in order.

        Raises:
            ValueError: If their number is not `num_leaves`.
        """
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(
                f"treespec.unflatten(leaves): `leaves` has length {len(leaves)} but the spec refers to a pytree that "
                f"holds {self.num_leaves} items ({self})."
            )
        return self._build_tree(iter(leaves))

    def _build_tree(self, leaves: Iterator[Any]) -> Any:
        children = [child._build_tree(leaves) for child in self._children]
        if is_structseq_class(self.type):
            return self.type(children)
        return SUPPORTED_NODES[self.type].unflatten_fn(children, self._context)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """Return the subtrees of `tree` at the positions of this spec's leaves.

        Raises:
            ValueError: If the structures differ above them.
        """
        found: list[Any] = []
        self._find(tree, found)
        return found

    def _find(self, tree: Any, found: list[Any]) -> None:
        for child, part in zip(self._children, self._parts(tree), strict=True):
            child._find(part, found)

    def _parts(self, tree: Any) -> Sequence[Any]:
        """Return the children of `tree`, which must be a node of this kind, in this one's order."""
        kind, mappings = _kind_of(tree), (dict, OrderedDict, defaultdict)
        if kind is not self.type and not (kind in mappings and self.type in mappings):
            raise ValueError(f"Node type mismatch; expected {self.type!r}, but got {kind!r}.")
        definition = _definition(tree)
        assert definition is not None
        parts, context = definition.flatten_fn(tree)
        if len(parts) != self.num_children:
            raise ValueError(f"Node arity mismatch; expected {self.num_children}, but got {len(parts)}.")
        if kind in mappings:
            keys = self._context[1] if self.type is defaultdict else self._context
            missing, extra = set(keys) - set(tree), set(tree) - set(keys)
            if missing or extra:
                differences = [f"missing key(s): {missing}"] * bool(missing) + [
                    f"extra key(s): {extra}"
                ] * bool(extra)
                raise ValueError(f"Node keys mismatch; {'; '.join(differences)}.")
            return [tree[key] for key in keys]
        if self.type is not deque and context != self._context:  # whose maxlen may differ
            raise ValueError(
                f"Node context mismatch for node type {self.type!r}; expected {self._context!r}, but got {context!r}."
            )
        return parts


class LeafSpec(TreeSpec):
    """The spec of a leaf."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.num_leaves = 1

    def is_leaf(self) -> bool:
        return True

    def __repr__(self, indent: int = 0) -> str:
        return "*"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeafSpec)

    def __hash__(self) -> int:
        return hash(LeafSpec)

    def _build_tree(self, leaves: Iterator[Any]) -> Any:
        return next(leaves)

    def _find(self, tree: Any, found: list[Any]) -> None:
        found.append(tree)


PyTreeSpec = TreeSpec
_LEAF = LeafSpec()


def treespec_leaf() -> LeafSpec:
    """Return the spec of a leaf."""
    return _LEAF


def treespec_pprint(treespec: TreeSpec) -> str:
    """Return the tree with asterisks for leaves, as text."""
    stars = [type("_", (), {"__repr__": lambda _: "*"})() for _ in range(treespec.num_leaves)]
    return repr(treespec.unflatten(stars))


def treespec_tuple(iterable: Iterable[TreeSpec] = (), /) -> TreeSpec:
    """Return the spec of a tuple of the nodes that specs describe.

    Raises:
        ValueError: If an element is not a TreeSpec.
    """
    children = list(iterable)
    if not all(isinstance(child, TreeSpec) for child in children):
        raise ValueError(f"Expected a tuple of TreeSpec values, got: {children!r}.")
    return TreeSpec(tuple, None, children)


def treespec_dict(mapping: Any = (), /, **kwargs: TreeSpec) -> TreeSpec:
    """Return the spec of a dict of the nodes that specs describe.

    Raises:
        ValueError: If a value is not a TreeSpec.
    """
    specs = dict(mapping, **kwargs)
    if not all(isinstance(child, TreeSpec) for child in specs.values()):
        raise ValueError(f"Expected a dictionary of TreeSpec values, got: {specs!r}.")
    return TreeSpec(dict, list(specs), specs.values())


def treespec_dumps(treespec: TreeSpec, protocol: int | None = None) -> str:
    """Return a spec as JSON in PyTorch's format.

    Raises:
        TypeError: If it is not a TreeSpec, or JSON cannot hold a context.
        ValueError: If the protocol is not 1.
        NotImplementedError: If a class was registered without a `serialized_type_name`.
    """
    if not isinstance(treespec, TreeSpec):
        raise TypeError(
            f"Expected `treespec` to be an instance of PyTreeSpec but got item of type {type(treespec)}."
        )
    return _json.dump_spec(treespec, protocol)


def treespec_loads(serialized: str) -> TreeSpec:
    """Return the spec that `treespec_dumps` wrote, here or on PyTorch.

    Raises:
        ValueError: If the protocol is not 1.
        NotImplementedError: If a type's name is not registered.
    """
    spec: TreeSpec = _json.load_spec(serialized, TreeSpec, _LEAF)
    return spec


# -- apart, and together again --------------------------------------------------------------------------


def tree_is_leaf(tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return True if it is a leaf."""
    return _definition(tree, is_leaf) is None


def tree_flatten(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """Return the leaves, depth first, and the TreeSpec of their nesting."""
    leaves: list[Any] = []
    return leaves, _spec(tree, is_leaf, leaves)


def _spec(tree: Any, is_leaf: IsLeaf, leaves: list[Any]) -> TreeSpec:
    definition = _definition(tree, is_leaf)
    if definition is None:
        leaves.append(tree)
        return _LEAF
    children, context = definition.flatten_fn(tree)
    return TreeSpec(definition.type, context, [_spec(child, is_leaf, leaves) for child in children])


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> PyTree:
    """Return a tree of the structure `treespec`, with `leaves` in order.

    Raises:
        ValueError: If the structure has another number of leaves.
        TypeError: If `treespec` is not a TreeSpec.
    """
    if not isinstance(treespec, TreeSpec):
        raise TypeError(
            f"Expected `treespec` to be an instance of PyTreeSpec but got item of type {type(treespec)}."
        )
    return treespec.unflatten(leaves)


def tree_iter(tree: PyTree, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """Yield the leaves, one after the other."""
    definition = _definition(tree, is_leaf)
    if definition is None:
        yield tree
    else:
        for child in definition.flatten_fn(tree)[0]:
            yield from tree_iter(child, is_leaf)


def tree_leaves(tree: PyTree, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves, depth first."""
    return list(tree_iter(tree, is_leaf))


def tree_structure(tree: PyTree, is_leaf: IsLeaf = None) -> TreeSpec:
    """Return the TreeSpec of the nesting of the leaves."""
    return tree_flatten(tree, is_leaf)[1]


def arg_tree_leaves(*args: PyTree, **kwargs: PyTree) -> list[Any]:
    """Return the leaves of all arguments."""
    return [leaf for tree in (*args, *kwargs.values()) for leaf in tree_iter(tree)]


def tree_map(func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None) -> PyTree:
    """Return a tree of the results of `func(leaf, *others)`. The others are the subtrees of `rests` at
    the leaf's position.

    Raises:
        ValueError: If a tree in `rests` has another structure.
    """
    leaves, treespec = tree_flatten(tree, is_leaf)
    return treespec.unflatten(map(func, leaves, *[treespec.flatten_up_to(rest) for rest in rests]))


def tree_map_(func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None) -> PyTree:
    """Call `func` like `tree_map`, ignore its results, and return `tree`."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def map_only(type_or_types_or_pred: Kinds, /) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Return a decorator that applies a function only to values of some types, or for which a predicate is True.

    Raises:
        TypeError: If the argument is neither types nor a predicate.
    """
    chosen = _chooser(type_or_types_or_pred)
    return lambda func: lambda x: func(x) if chosen(x) else x


def _chooser(kinds: Any) -> Callable[[Any], bool]:
    if isinstance(kinds, type | tuple) or type(kinds) is type(int | str):
        return lambda x: isinstance(x, kinds)
    if not callable(kinds):
        raise TypeError("Argument must be a type, a tuple of types, or a callable.")
    return lambda x: bool(kinds(x))


def tree_map_only(
    type_or_types_or_pred: Kinds, /, func: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """Apply `func` to leaves of some types, or for which a predicate is True; keep the others."""
    return tree_map(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Kinds, /, func: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """Call `tree_map_` for leaves of some types, or for which a predicate is True."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return True if a predicate holds for all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return True if a predicate holds for a leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(kinds: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return True if a predicate holds for all leaves of some types."""
    return all(pred(leaf) for leaf in tree_iter(tree, is_leaf) if isinstance(leaf, kinds))


def tree_any_only(kinds: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return True if a predicate holds for a leaf of some types."""
    return any(pred(leaf) for leaf in tree_iter(tree, is_leaf) if isinstance(leaf, kinds))


def _broadcast_to_and_flatten(tree: PyTree, treespec: TreeSpec, is_leaf: IsLeaf = None) -> list[Any] | None:
    """Return the leaves of `tree`, each repeated for the leaves of `treespec` below it; None if the structures do not
    match.
    """
    definition = _definition(tree, is_leaf)
    if definition is None:
        return [tree] * treespec.num_leaves
    if treespec.is_leaf() or definition.type is not treespec.type:
        return None
    children, context = definition.flatten_fn(tree)
    if len(children) != treespec.num_children or context != treespec.context:
        return None
    parts = [
        _broadcast_to_and_flatten(child, spec, is_leaf)
        for child, spec in zip(children, treespec.children(), strict=True)
    ]
    return None if None in parts else [leaf for part in parts if part is not None for leaf in part]


# -- with paths -----------------------------------------------------------------------------------------


def tree_flatten_with_path(
    tree: PyTree, is_leaf: IsLeaf = None
) -> tuple[list[tuple[KeyPath, Any]], TreeSpec]:
    """Work like `tree_flatten`, with each leaf's path.

    Raises:
        ValueError: If the keys of a node's class are unknown.
    """
    return list(_with_paths((), tree, is_leaf)), tree_structure(tree, is_leaf)


def tree_leaves_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """Work like `tree_leaves`, with each leaf's path."""
    return list(_with_paths((), tree, is_leaf))


def tree_map_with_path(
    func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """Work like `tree_map`; the function is called as `func(path, leaf, *others)`."""
    found, treespec = tree_flatten_with_path(tree, is_leaf)
    paths, leaves = [path for path, _ in found], [leaf for _, leaf in found]
    return treespec.unflatten(map(func, paths, leaves, *[treespec.flatten_up_to(rest) for rest in rests]))


def _with_paths(path: KeyPath, tree: Any, is_leaf: IsLeaf) -> Iterator[tuple[KeyPath, Any]]:
    definition = _definition(tree, is_leaf)
    if definition is None:
        yield path, tree
        return
    if definition.keys is None:
        raise ValueError(
            f"Did not find a flatten_with_keys_fn for type: {definition.type}. Please pass a flatten_with_keys_fn "
            "argument to register_pytree_node."
        )
    for key, child in zip(definition.keys(tree), definition.flatten_fn(tree)[0], strict=True):
        yield from _with_paths((*path, key), child, is_leaf)


explain_absent_names(globals(), "torch.utils._pytree")
publish(globals())
