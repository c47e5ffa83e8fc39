"""torch.fx.experimental.symbolic_shapes: functions that libraries call with sizes and with conditions on sizes.

In PyTorch these may be symbols. Flambeau has no symbolic sizes, so arguments are numbers and bools, and results are
what PyTorch returns for such. The classes of the module can be imported and raise when they are used.
"""

from __future__ import annotations

from typing import Any

import flambeau as torch
from flambeau.core.public_names import explain_absent_names
from flambeau.fx.graph import Graph
from flambeau.fx.node import Node
from flambeau.utils._ordered_set import OrderedSet

__all__ = [
    "canonicalize_bool_expr", "cast_symbool_to_symint_guardless", "compute_unbacked_bindings", "constrain_range",
    "expect_true", "find_symbol_binding_fx_nodes", "free_symbols", "free_unbacked_symbols", "guard_bool",
    "guard_float", "guard_int", "guard_or_false", "guard_or_true", "guard_scalar", "guard_size_oblivious",
    "guarding_hint_or_throw", "has_free_symbols", "has_free_unbacked_symbols", "has_guarding_hint",
    "has_static_value", "has_symbolic_sizes_strides", "is_accessor_node", "is_concrete_bool",
    "is_concrete_float", "is_concrete_int", "is_nested_int", "is_symbol_binding_fx_node", "is_symbolic",
    "optimization_hint", "statically_known_false", "statically_known_true", "sym_and", "sym_eq", "sym_or",
]  # fmt: skip


def _check(value: Any, *types: type) -> Any:
    if not isinstance(value, types):
        raise AssertionError(f"expected {' or '.join(each.__name__ for each in types)}, got {type(value)}")
    return value


def is_symbolic(val: Any) -> bool:
    """Return False for a number; sizes are never symbolic."""
    if isinstance(val, int | float | bool):
        return False
    raise AttributeError(f"'{type(val).__name__}' object has no attribute 'node'")


def has_static_value(a: Any) -> bool:
    """Return True: the value of a number is known."""
    _check(a, bool, int, float)
    return True


def is_concrete_int(a: Any) -> bool:
    """Return True: an int is concrete. Raises AssertionError for other types."""
    _check(a, int)
    return True


def is_concrete_float(a: Any) -> bool:
    """Return True: a float or int is concrete. Raises AssertionError for other types."""
    _check(a, float, int)
    return True


def is_concrete_bool(a: Any) -> bool:
    """Return True: a bool is concrete. Raises AssertionError for other types."""
    _check(a, bool)
    return True


def is_nested_int(s: Any) -> bool:
    """Return False: the sizes of nested tensors are not symbolic."""
    return False


def guard_int(a: Any) -> int:
    """Return `a`, an int; a symbol would be replaced by its value, which a guard then checks."""
    return int(_check(a, int))


def guard_bool(a: Any) -> bool:
    """Return `a`, a bool; see `guard_int`."""
    return bool(_check(a, bool))


def guard_float(a: Any) -> float:
    """Return `a`, a float, as one; see `guard_int`."""
    return float(_check(a, float))


def guard_scalar(a: Any) -> bool | int | float:
    """Return `a`, a number; see `guard_int`."""
    if not isinstance(a, bool | int | float):
        raise AssertionError(f"unrecognized scalar {a}")
    return a


def guard_size_oblivious(expr: Any) -> bool:
    """Return `expr`, a bool, unchanged."""
    return bool(_check(expr, bool))


def guard_or_true(a: Any) -> bool:
    """Return the truth value of `a`. PyTorch returns True for a condition that it cannot decide."""
    return bool(a)


def guard_or_false(a: Any) -> bool:
    """Return the truth value of `a`. PyTorch returns False for a condition that it cannot decide."""
    return bool(a)


def statically_known_true(x: Any) -> bool:
    """Return True if a condition is true."""
    return bool(_check(x, bool))


def statically_known_false(x: Any) -> bool:
    """Return True if a condition is false."""
    return not _check(x, bool)


def expect_true(a: Any, skip: int = 0) -> bool:
    """Return `a`, a bool. PyTorch assumes that an undecided condition is true."""
    return bool(_check(a, bool))


def sym_and(x: Any, *others: Any) -> bool:
    """Return True if all conditions are true."""
    return all((x, *others))


def sym_or(x: Any, *others: Any) -> bool:
    """Return True if one condition is true."""
    return any((x, *others))


def sym_eq(x: Any, y: Any) -> bool:
    """Return True if two numbers, or two tuples or lists of numbers, are equal.

    Raises:
        AssertionError: If the arguments are of other types, or of different ones.
    """
    if isinstance(x, tuple | list) and isinstance(y, tuple | list):
        return len(x) == len(y) and all(map(sym_eq, x, y))
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    raise AssertionError(f"unexpected sym_eq between {type(x)} {type(y)}")


def constrain_range(a: Any, *, min: int | None, max: int | None = None) -> None:
    """Raise ValueError if a number is out of range.

    Args:
        a: The number.
        min: The least number that is allowed.
        max: The largest number that is allowed; None means any.
    """
    _check(a, int)
    if (min is not None and a < min) or (max is not None and a > max):
        raise ValueError(f"Invalid value {a} for range [{min}:{max}]")


def canonicalize_bool_expr(expr: Any) -> Any:
    """Return `expr`: a bool is canonical."""
    return expr


def cast_symbool_to_symint_guardless(symbool: Any) -> int:
    """Return 1 for a condition that is true, 0 for one that is false."""
    return 1 if _check(symbool, bool) else 0


def optimization_hint(a: Any, fallback: int | None = None) -> int:
    """Return `a`: the example value of a size that is a number is the number itself."""
    return int(a)


def guarding_hint_or_throw(a: Any) -> Any:
    """Return `a`: the example value of a size that is a number is the number itself."""
    return _check(a, int, bool)


def has_guarding_hint(a: Any) -> bool:
    """Return True: a number has an example value, itself."""
    _check(a, int, bool, float)
    return True


def free_symbols(val: Any) -> OrderedSet[Any]:
    """Return the symbols of sizes in tensors and numbers: an empty set."""
    return OrderedSet(())


def free_unbacked_symbols(x: Any) -> OrderedSet[Any]:
    """Return the symbols of sizes that depend on data: an empty set."""
    return OrderedSet(())


def has_free_symbols(val: Any) -> bool:
    """Return False: no tensor and no number has symbols."""
    return False


def has_free_unbacked_symbols(x: Any) -> bool:
    """Return False: no tensor and no number has symbols."""
    return False


def has_symbolic_sizes_strides(elem: torch.Tensor) -> bool:
    """Return False: sizes and strides are numbers."""
    return False


def is_symbol_binding_fx_node(node: Node) -> None:
    """Return None: no node of a graph introduces a symbol."""


def find_symbol_binding_fx_nodes(graph: Graph) -> dict[Any, Node]:
    """Return the nodes of a graph that introduce symbols, of which there are none."""
    return {}


def is_accessor_node(node: Node) -> bool:
    """Return True if a node reads a size, a stride or the offset of a tensor."""
    method = node.op == "call_method" and node.target in ("size", "stride", "storage_offset", "item")
    value = node.args[0].meta.get("example_value") if node.args and isinstance(node.args[0], Node) else None
    return method and isinstance(value, torch.Tensor)


def compute_unbacked_bindings(shape_env: Any, example_value: Any, *args: Any, **kwargs: Any) -> None:
    """Return None: no value introduces symbols."""


explain_absent_names(globals(), "torch.fx.experimental.symbolic_shapes")
