"""The program's names for the tensors of an operation, and for the variable that takes its result."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flambeau.core.callsite import Site
from flambeau.observe.reporting.program_names import root_of, target_of
from flambeau.observe.reporting.spots import SourceSpot, is_simple, spot_of

_INDIRECT = {"backward", "grad", "step", "replay"}


def tensor_name(spot: SourceSpot, site: Site, operand: int, allocated: Site | None) -> str | None:
    """Return the program's expression for an operand, if it has this value before the statement runs.

    Args:
        site: The call site of the spot.
        operand: The position among the operator's inputs.
        allocated: The call site of its allocation: the variable that took the result is likely the operand.
    """
    if allocated == site:
        return None  # a temporary inside of the operation
    names = [ast.unparse(x) for x in _operands(spot.node) if is_simple(x)]
    names = [name for name in names if root_of(name) not in spot.source.imported]
    creation = spot_of(allocated)
    target = target_of(creation) if creation is not None else None
    if target in names:
        found = target
    elif _runs_other_operations(spot.node):
        return None
    elif len(names) == 1 or operand < len(names):
        found = names[0 if len(names) == 1 else operand]
    else:
        return None
    return found if found is not None and spot.is_bound(root_of(found), site[0]) else None


def _runs_other_operations(node: ast.AST) -> bool:
    """Return True for calls such as `loss.backward()`, whose kernels use tensors that the call does not name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _INDIRECT


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
        for argument in (*node.args, *[keyword.value for keyword in node.keywords]):
            yield from argument.elts if isinstance(argument, (ast.List, ast.Tuple)) else [argument]
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.AugAssign):
        yield from (node.target, node.value)
    elif isinstance(node, ast.Subscript):
        yield node.value
