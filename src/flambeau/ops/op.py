"""`Op`: the definition of an operator, one frozen record.

Families (`pointwise`, `reduction`, ...) fill the fields that their members share.

# Note [Derivatives]
A derivative is one formula for each input, or one for all of them (`whole`). A formula is a plain function of tensors,
and is recorded itself if a second derivative is needed. The names of its parameters determine what it receives, and
therefore what a recorded call saves:

    grad            the gradient of the first output;  grads  of every output, zeros where there is none
    given           the gradients of the outputs, None where there is none
    a, b, c, ...    the inputs by position: tensors, or the Python scalars of the call
    out, outs       the first output; all outputs;  out1, out2 the second, third alone
    params          the static params;  metas  the metas of the inputs (None for scalars)
    needs           which inputs need a gradient (for `whole`)
    call            `call(op, args, params)`, which runs another operator

Conventions are PyTorch's: the gradient of a complex input is the conjugate Wirtinger derivative. A formula may return
its result broadcast, in a wider dtype, or complex for a real input: the engine sums, casts and takes the real part. It
may return None for zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from flambeau.core import errors
from flambeau.core.device import CPU, device
from flambeau.core.dtype import dtype
from flambeau.core.frozen import Record
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Kernel, KernelNotes, kernel_notes
from flambeau.ops.autocast_rules import UNCHANGED, AutocastRule

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
Operand = Meta | type
"""What a rule sees of an input: a tensor's meta, or the type of a Python scalar (bool, int, float, complex)."""


class Signature(Record):
    """The result of inference: what an operator's call creates and how the kernel takes its operands.

    Attributes:
        outputs: The metas of the new outputs.
        inputs: For each operand either a dtype, in which it is passed by value (a Python scalar, or a 0-dim CPU tensor
            next to CUDA tensors), or the meta with which the kernel reads the operand's memory (stride 0 where it is
            broadcast).
        params: Static params of the kernel.
        checked: Positions of scalars that must fit their dtype; other scalars wrap, as in PyTorch.
    """

    outputs: tuple[Meta, ...]
    inputs: tuple[Meta | dtype | type[object], ...]
    params: tuple[Any, ...] = ()
    checked: tuple[int, ...] = ()

    # The constructor is spelled out because each new shape of a call creates one; this takes a third of the time.
    def __init__(
        self,
        outputs: tuple[Meta, ...],
        inputs: tuple[Meta | dtype | type[object], ...],
        params: tuple[Any, ...] = (),
        checked: tuple[int, ...] = (),
    ) -> None:
        vars(self).update(outputs=outputs, inputs=inputs, params=params, checked=checked)


Rule = Callable[[Sequence[Operand], tuple[Any, ...]], Signature]
Make = Callable[..., Any]
Sample = tuple[tuple[Any, ...], tuple[Any, ...]]


Formula = Callable[..., Any]
Linear = Literal["", "together", "each"]
NodeName = str | Callable[[Sequence[Meta | None], tuple[Any, ...]], str]
INPUTS = "abcdefghijkl"


class Derivative:
    """The backward formulas of an operator: see Note [Derivatives].

    Attributes:
        formulas: One for each input; None for an input without a gradient.
        whole: One formula that returns the gradients of all inputs.
        name: PyTorch's name of the node, if it is not the operator's name in camel case plus "Backward0". If it differs
            from call to call, a function of the metas of the inputs (None for scalars) and the params.
        outputs: Number of differentiable outputs, from the first (default: all).
        linear: "together": the operator is linear in all floating-point tensors together; "each": in each of them.
            Forward-mode differentiation then runs the operator itself on tangents.
        takes: The inputs that receive gradients; None for all.
    """

    __slots__ = ("formulas", "linear", "name", "outputs", "takes", "whole")

    def __init__(
        self,
        *formulas: Formula | None,
        whole: Formula | None = None,
        name: NodeName | None = None,
        outputs: int | None = None,
        linear: Linear = "",
    ) -> None:
        self.formulas = formulas
        self.outputs = outputs
        self.whole = whole
        self.name = name
        self.linear = linear
        passing = frozenset([i for i, formula in enumerate(formulas) if formula is not None])
        self.takes = passing if formulas else None


def names_of(formula: Formula) -> tuple[str, ...]:
    """Return the names of a formula's parameters, which determine its arguments. Objects have an attribute `names`
    instead.

    A `whole` formula may have a method `bind_needs(needs)`, which returns the formula for these inputs.
    """
    names: tuple[str, ...] | None = getattr(formula, "names", None)
    if names is not None:
        return names
    code = formula.__code__
    return tuple(code.co_varnames[: code.co_argcount])


def overload_names(tensor: str, scalar: str) -> NodeName:
    """Return a function that names nodes, by whether the second operand is a tensor or a number."""
    return lambda metas, params: scalar if metas[1] is None else tensor


NOT_DIFFERENTIABLE = Derivative()
"""The derivative of an operator whose results never require a gradient."""
MISSING = Derivative()
"""Of an operator whose derivative is not written: the walk backward raises there."""


class Op(Record):
    """The definition of one operator.

    Attributes:
        name: PyTorch's public name.
        rule: Inference, `(operands, params) -> Signature`: a pure function that raises PyTorch's errors for bad shapes,
            dtypes and dims.
        kernel: The kernel that is launched; its reference implementation defines the operator.
        dtypes: Dtypes of the first operand that it accepts.
        samples: `(make, dtype) -> [(inputs, params), ...]`, the inputs of every generated test. `make(*shape, low=,
            high=)`
            returns a random array of the dtype.
        casts_output: True if the kernel stores to any output dtype that `can_cast` allows (pointwise operators);
            otherwise an `out=` of another dtype goes through a temporary.
        flags: Names of the flags that it depends on; their values are appended to `params` for the rule.
        derivative: Its backward formulas.
        autocast: The dtypes to which autocast casts its inputs.
        recorded_in_place: False if autograd ignores the operator in place. Then it changes leaves, too, and the changed
            tensor keeps its node.
        planned: True if a CUDA device loads a library's plan for it, which is in the device's bounded cache of plans.
    """

    name: str
    rule: Rule
    kernel: Kernel
    dtypes: tuple[dtype, ...]
    samples: Callable[[Make, dtype], Iterable[Sample]]
    casts_output: bool = False
    flags: tuple[str, ...] = ()
    planned: bool = False
    derivative: Derivative = MISSING
    autocast: AutocastRule = UNCHANGED
    recorded_in_place: bool = True


table: dict[str, Op] = {}
"""Every operator by name; filled by `define` alone."""


def define(op: Op) -> Op:
    """Add an operator to the table. A name can be defined only once."""
    if op.name in table:
        raise ValueError(f"operator {op.name!r} is defined twice")
    table[op.name] = op
    return op


class Definition(Protocol[R_co]):
    """The definition of an operator as its author writes it. Each kind of operator has a class of definitions."""

    def operator(self) -> R_co:
        """Return the operator, after adding it to the table of operators."""


def as_function(definition: Callable[P, Definition[R_co]]) -> Callable[P, R_co]:
    """Return the function that defines an operator from the fields of a family's `definition`."""

    def define_operator(*values: P.args, **fields: P.kwargs) -> R_co:
        return definition(*values, **fields).operator()

    return define_operator


def note(op: Op, public: str = "", *, overwrites: bool = False) -> None:
    """Register how reports name an operator's kernel, where the kernel's name alone would mislead.

    Args:
        op: The operator.
        public: The public name of the function that runs the kernel.
        overwrites: The kernel does not read what it overwrites.
    """
    kernel_notes[op.kernel.name] = KernelNotes(public, overwrites)


def common_device(operands: Sequence[Operand]) -> device:
    """Return the device of an operator on these operands.

    0-dim CPU tensors may accompany CUDA tensors; they are passed by value.

    Raises:
        RuntimeError: For any other mixture of devices.
    """
    found: device | None = None
    for x in operands:
        if isinstance(x, Meta) and not (x.device is CPU and x.ndim == 0):
            if found is None:
                found = x.device
            elif found is not x.device:
                raise RuntimeError(errors.devices_differ(found, x.device))
    if found is not None:
        return found
    devices = [x.device for x in operands if isinstance(x, Meta)]
    return devices[0] if devices else CPU


def one_device(operands: Sequence[Operand], routine: str = "", names: Sequence[str] = ()) -> device:
    """Return the device of all tensors, which must be equal.

    Args:
        operands: The inputs; a 0-dim CPU tensor is not taken by value.
        routine: PyTorch's name of the CUDA function that checks the devices; "" if the message has no name.
        names: PyTorch's names of the inputs.

    Raises:
        RuntimeError: If two tensors are on different devices.
    """
    where: device | None = None
    for i, x in enumerate(operands):
        if not isinstance(x, Meta) or x.device is where:
            continue
        if where is None:
            where = x.device
        elif routine and "cuda" in (where.type, x.device.type):
            raise RuntimeError(errors.argument_elsewhere(names[i], x.device, where, routine))
        else:
            raise RuntimeError(errors.devices_differ(where, x.device))
    assert where is not None
    return where
