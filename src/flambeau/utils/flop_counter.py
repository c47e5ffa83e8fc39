"""torch.utils.flop_counter: floating-point operations of products, convolutions and attention.

A `TorchDispatchMode` sees each operator; formulas compute from the shapes of its arguments and results. Only
multiplications and additions of products count, two operations for each pair of factors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.public_names import lacking
from flambeau.tensor import dispatch
from flambeau.tensor.tensor import Tensor
from flambeau.utils._python_dispatch import TorchDispatchMode
from flambeau.utils._pytree import tree_map
from flambeau.utils.module_tracker import ModuleTracker

__all__ = ["FlopCounterMode", "flop_registry", "register_flop_formula"]

__getattr__ = lacking("torch.utils.flop_counter")

Formula = Callable[..., int]
Shape = Sequence[int]

flop_registry: dict[Any, Formula] = {}
"""Operator, such as `torch.ops.aten.mm` -> `formula(*args, out_val=result, **kwargs)`."""


def get_shape(value: Any) -> Any:
    """Return the shape of a tensor, and every other value as it is."""
    return value.shape if isinstance(value, Tensor) else value


def _on_shapes(formula: Formula) -> Formula:
    """Return a formula that takes tensors and calls `formula` with their shapes."""

    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        args, kwargs, out_shape = tree_map(get_shape, (args, kwargs, out_val))
        return formula(*args, out_shape=out_shape, **kwargs)

    return count


def register_flop_formula(targets: Any, get_raw: bool = False) -> Callable[[Formula], Formula]:
    """Return a decorator that makes a function the formula of operators.

    Args:
        targets: An operator, such as `torch.ops.aten.mm`, or a list of them.
        get_raw: True if the function receives tensors, and `out_val`, instead of shapes, and `out_shape`.

    Raises:
        ValueError: If a target is not an operator.
        RuntimeError: If one has a formula.

    Source: `torch.utils.flop_counter.register_flop_formula`.
    """

    def define(formula: Formula) -> Formula:
        for target in targets if isinstance(targets, list | tuple) else [targets]:
            if not hasattr(target, "_qualified_op_name"):
                raise ValueError(
                    "register_flop_formula(targets): expected each target to be OpOverloadPacket (i.e. "
                    f"torch.ops.mylib.foo), got {target} which is of type {type(target)}"
                )
            if target in flop_registry:
                raise RuntimeError(f"duplicate registrations for {target}")
            flop_registry[target] = formula if get_raw else _on_shapes(formula)
        return formula

    return define


def _counts(*names: str) -> Callable[[Formula], Formula]:
    packets = [dispatch.find_packet(name) for name in names]
    return register_flop_formula([packet for packet in packets if packet is not None])


@_counts("mm")
def mm_flop(a_shape: Shape, b_shape: Shape, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Count a product of matrices."""
    return 2 * a_shape[0] * a_shape[1] * b_shape[1]


@_counts("addmm")
def addmm_flop(
    self_shape: Shape, a_shape: Shape, b_shape: Shape, out_shape: Any = None, **kwargs: Any
) -> int:
    """Count a product of matrices; the sum is free."""
    return mm_flop(a_shape, b_shape)


@_counts("bmm")
def bmm_flop(a_shape: Shape, b_shape: Shape, out_shape: Any = None, **kwargs: Any) -> int:
    """Count products of batches of matrices."""
    return 2 * prod(a_shape) * b_shape[2]


@_counts("baddbmm")
def baddbmm_flop(
    self_shape: Shape, a_shape: Shape, b_shape: Shape, out_shape: Any = None, **kwargs: Any
) -> int:
    """Count products of batches of matrices; the sum is free."""
    return bmm_flop(a_shape, b_shape)


def conv_flop_count(x_shape: Shape, w_shape: Shape, out_shape: Shape, transposed: bool = False) -> int:
    """Count a convolution: each window meets each weight of its channels.

    Args:
        x_shape: Shape of the input.
        w_shape: Shape of the weight.
        out_shape: Shape of the result.
        transposed: True if windows lie on the input.
    """
    windows = x_shape if transposed else out_shape
    return 2 * x_shape[0] * prod(windows[2:]) * prod(w_shape)


@_counts("convolution", "_convolution")
def conv_flop(
    x_shape: Shape, w_shape: Shape, _bias: Any, _stride: Any, _padding: Any, _dilation: Any, transposed: bool,
    *args: Any, out_shape: Any = None, **kwargs: Any,
) -> int:  # fmt: skip
    """Count a convolution."""
    return conv_flop_count(x_shape, w_shape, out_shape, transposed)


@_counts("convolution_backward")
def conv_backward_flop(
    grad_out_shape: Shape, x_shape: Shape, w_shape: Shape, _bias: Any, _stride: Any, _padding: Any, _dilation: Any,
    transposed: bool, _output_padding: Any, _groups: int, output_mask: Sequence[bool], out_shape: Any = None,
    **kwargs: Any,
) -> int:  # fmt: skip
    """Count the gradients of a convolution: each that is computed is a convolution, too."""
    count = 0
    if output_mask[0]:
        count += conv_flop_count(grad_out_shape, w_shape, out_shape[0], not transposed)
    if output_mask[1]:
        image, filters = (grad_out_shape, x_shape) if transposed else (x_shape, grad_out_shape)
        swapped = [[shape[1], shape[0], *shape[2:]] for shape in (image, filters, out_shape[1])]
        count += conv_flop_count(*swapped)
    return count


def sdpa_flop_count(query_shape: Shape, key_shape: Shape, value_shape: Shape) -> int:
    """Count attention: scores of all pairs, and the sums of values by them."""
    batch, heads, rows, depth = query_shape
    return 2 * batch * heads * rows * key_shape[2] * (depth + value_shape[3])


@_counts("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention")
def sdpa_flop(
    query_shape: Shape, key_shape: Shape, value_shape: Shape, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    """Return the number of floating-point operations of attention."""
    return sdpa_flop_count(query_shape, key_shape, value_shape)


def sdpa_backward_flop_count(
    grad_out_shape: Shape, query_shape: Shape, key_shape: Shape, value_shape: Shape
) -> int:
    """Count the gradients of attention: scores again, and two products for each of scores and sums."""
    batch, heads, rows, depth = query_shape
    return 2 * batch * heads * rows * key_shape[2] * (3 * depth + 2 * value_shape[3])


@_counts("_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_flash_attention_backward")
def sdpa_backward_flop(
    grad_out_shape: Shape, query_shape: Shape, key_shape: Shape, value_shape: Shape, *args: Any, out_shape: Any = None,
    **kwargs: Any,
) -> int:  # fmt: skip
    """Count the gradients of attention."""
    return sdpa_backward_flop_count(grad_out_shape, query_shape, key_shape, value_shape)


class FlopCounterMode:
    """A context that counts floating-point operations by module and operator.

    Args:
        mods: Not used any more; modules are found as they run.
        depth: How many levels of modules the table shows; None: all.
        display: True if the table is printed at the end.
        custom_mapping: Operator -> formula of shapes, for this context only.

    Source: `torch.utils.flop_counter.FlopCounterMode`.
    """

    def __init__(
        self, mods: Any = None, depth: int | None = 2, display: bool = True, custom_mapping: Any = None
    ) -> None:
        if mods is not None:
            warn_program("mods argument is not needed anymore, you can stop passing it", UserWarning)
        self.flop_counts: dict[str, dict[Any, int]] = defaultdict(lambda: defaultdict(int))
        self.depth = depth
        self.display = display
        self.flop_registry = {
            **flop_registry,
            **{
                target: formula if getattr(formula, "_get_raw", False) else _on_shapes(formula)
                for target, formula in (custom_mapping or {}).items()
            },
        }
        self.mod_tracker = ModuleTracker()
        self.mode: Any = None

    def get_total_flops(self) -> int:
        """Return the number of operations."""
        return sum(self.flop_counts["Global"].values())

    def get_flop_counts(self) -> dict[str, dict[Any, int]]:
        """Return the numbers of operations: module's name -> operator -> number."""
        return {name: dict(counts) for name, counts in self.flop_counts.items()}

    def get_table(self, depth: int | None = None) -> str:
        """Return the FLOP counts as a table: a row for each module, and below it its operators.

        Args:
            depth: How many levels of modules it shows; None: as many as the constructor was passed.
        """
        depth = depth or self.depth or len(self.flop_counts) + 1
        total = self.get_total_flops()
        names = [name for name in sorted(self.flop_counts) if name != "Global" and name.count(".") < depth]
        is_covered = any(sum(self.flop_counts[name].values()) >= total for name in names)
        rows = [row for name in names for row in self._rows(name, name.count("."), total)]
        if "Global" in self.flop_counts and not is_covered:
            rows = [*self._rows("Global", 0, total), *[(f" {row[0]}", *row[1:]) for row in rows]]
        return _format_table(("Module", "FLOP", "% Total"), rows or [("Global", "0", "0%")])

    def _rows(self, name: str, indent: int, total: int) -> list[tuple[str, str, str]]:
        counts, space = self.flop_counts[name], " " * indent
        pairs = [(name, sum(counts.values())), *[(f" - {each}", count) for each, count in counts.items()]]
        return [
            (f"{space}{label}", _shorten(count, total), f"{count / total:.2%}" if total else "0%")
            for label, count in pairs
        ]

    def count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add the operations of a call to those of the modules that run."""
        packet = func._overloadpacket
        formula = self.flop_registry.get(packet)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=result)
            for name in set(self.mod_tracker.parents):
                self.flop_counts[name][packet] += flops

    def __enter__(self) -> FlopCounterMode:
        self.flop_counts.clear()
        self.mod_tracker.__enter__()
        self.mode = _CountingFlops(self)
        self.mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.mode.__exit__(*error)
        self.mode = None
        self.mod_tracker.__exit__()
        if self.display:
            print(self.get_table(self.depth))


class _CountingFlops(TorchDispatchMode):
    """The mode of a `FlopCounterMode`."""

    def __init__(self, counter: FlopCounterMode) -> None:
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._counter.count(func, args, kwargs or {}, result)
        return result


_SUFFIXES = ("", "K", "M", "B", "T")


def _shorten(count: int, total: int) -> str:
    """Return a number in the unit in which the total has two to four digits."""
    unit = max(0, min(len(_SUFFIXES) - 1, (len(str(total)) - 2) // 3))
    return f"{count / 1000**unit:.3f}{_SUFFIXES[unit]}"


def _format_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    line = "  ".join(["-" * width for width in widths])
    texts = [
        "  ".join(
            [row[0].ljust(widths[0]), *[cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]]
        )
        for row in (header, *rows)
    ]
    return "\n".join([texts[0].rstrip(), line, *texts[1:]])
