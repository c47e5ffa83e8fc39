"""The public name of the operator that a command runs, and the text for uses of previous iterations."""

from __future__ import annotations

import ast

from flambeau.core.callsite import Site
from flambeau.driver.protocol import AUTOCAST, kernel_notes
from flambeau.observe.reporting.source_file import last_name, source_file
from flambeau.observe.reporting.spots import is_comprehension, is_simple, spot_of

ACCESS = "an access"  # a host access that belongs to no operator: `item`, `tolist`, `print`
_DIRECTIONS = {"copy_in": "copy to the device", "copy_out": "copy to the host"}
_MANY_USES = ("copy", "fill")  # kernels that serve several operators: `clone` and `to`, `zero_` and `full`
_ROOMS = ("linalg", "special")


def public_name(kernel: str, site: Site) -> str:
    """Return the public name of the operator that runs `kernel`, from the program's text if it calls a
    module's function.

    Args:
        kernel: The name of a kernel, or of another command.
        site: The call site.
    """
    called, is_function = _called_function(site)
    if kernel in _DIRECTIONS:
        return f"{_DIRECTIONS[kernel]} ({called.removeprefix('F.')})" if called else _DIRECTIONS[kernel]
    if kernel == ACCESS:
        return called or kernel
    noted = _noted_name(kernel)
    if noted or kernel == AUTOCAST:
        return noted or kernel
    name = kernel_name(kernel)
    if is_function or name.startswith("_") or name in _MANY_USES or called == f"{name}_":
        return called or name
    return name


def kernel_name(kernel: str) -> str:
    """Return the public name of a kernel's operator, or the closest one."""
    noted = _noted_name(kernel)
    if noted:
        return noted
    name = kernel.partition(".")[0] or kernel
    if "_backward" in name:
        return f"{kernel_name(name.partition('_backward')[0])} backward"
    for room in _ROOMS:
        if name.startswith(f"{room}_"):
            return f"{room}.{name.removeprefix(f'{room}_')}"
    return name


def noted_name(kernel: str) -> str:
    """Return the name that a kernel is shown by: its operator's, such as "SGD.step", or its own."""
    return _noted_name(kernel) or kernel


def _noted_name(kernel: str) -> str:
    return kernel_notes[kernel].public if kernel in kernel_notes else ""


def reads_as_well(kernel: str, site: Site) -> bool:
    """Return True if a command that writes an operand in place also reads it, as far as its line shows."""
    name = kernel_name(kernel)
    overwrites = name in kernel_notes and kernel_notes[name].overwrites
    return not overwrites and _called_function(site)[0] == f"{name}_"


def repetition(first: Site, second: Site) -> str:
    """Return "of a previous iteration" or "of a previous call" if the first use was in one; else ""."""
    if first[0] is not second[0] or first[1] < second[1]:
        return ""
    begin, spot = spot_of(first), spot_of(second)
    is_loop = begin is not None and spot is not None and spot.loop_with(begin) is not None
    if is_loop or is_comprehension(first[0]):
        return "of a previous iteration"
    return "" if first[0].co_name == "<module>" else "of a previous call"


def _called_function(site: Site) -> tuple[str, bool]:
    """Return the name of the function that the program called, and whether it belongs to a module; else "" and
    False.
    """
    source = source_file(site[0])
    node = source.node_at(site) if source is not None else None
    if isinstance(node, ast.AugAssign):
        return _IN_PLACE.get(type(node.op), ""), False
    if source is None or not isinstance(node, ast.Call):
        return "", False
    root, *rest = ast.unparse(node.func).split(".")
    if root not in source.imported or not is_simple(node.func):
        return last_name(node.func), False
    *holder, name = *source.imported[root].split("."), *rest
    return f"F.{name}" if holder[-1:] == ["functional"] else name, True


_IN_PLACE: dict[type[ast.operator], str] = {
    ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_", ast.Pow: "pow_", ast.Mod: "remainder_",
    ast.FloorDiv: "floor_divide_", ast.BitAnd: "bitwise_and_", ast.BitOr: "bitwise_or_", ast.BitXor: "bitwise_xor_",
}  # fmt: skip
