"""The signatures that `help()`, `inspect.signature` and the stubs show of `torch.*` functions and `Tensor` methods.

# Note [Documented signatures]
Problem: definitions take more than PyTorch documents (NumPy's names of arguments, deprecated orders), or read keywords
themselves: `zeros(*sizes, **given)`.
Rule: the signature is that of the definition, without what only old programs use and with the keywords that
creations share written out. `_LINES` lists the documented parameters of definitions that do not state them.
Why it is cheap: a function has a `public.PublicSignature`, which imports this module when it is asked for parameters.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from flambeau.tensor.arguments import typing
from flambeau.tensor.arguments.arg_errors import stated_signature
from flambeau.tensor.signatures import signatures_of

_POSITIONAL, _KEYWORD = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
_SEVERAL, _NAMED = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
_SELF = Parameter("self", _POSITIONAL, annotation="Tensor")
_NAMED_DEFAULTS = {"strided", "contiguous_format", "preserve_format"}


def documented_signature(define: Callable[..., Any], name: str, method: bool) -> Signature:
    """Return the signature of a definition as the documentation has it.

    Args:
        define: The definition, with or without functions around it.
        name: Its public name.
        method: Whether it is a method of Tensor.
    """
    own = stated_signature(define)
    lines = _documented_lines()
    line = lines.get(f"Tensor.{name}") if method else lines.get(name)
    if line is not None:
        found = _parse(line, method=method)
    elif method and name in lines:  # the signatures of the function, without its tensor
        found = [_SELF, *_parse(lines[name])[1:]]
    else:
        found = _complete(own, name, method)
    if method:
        found = [each for each in found if each.name != "out"]
    return own.replace(parameters=found)


def call_signatures(define: Callable[..., Any], name: str, method: bool) -> list[Signature]:
    """Return each way to call a public function: those of PyTorch's parser where it has several."""
    shown = documented_signature(define, name, method)
    listed = [_parse(line, shown, method) for line in signatures_of(name, method)]
    if not listed:
        return [shown]
    last = [shown.parameters["out"]] if "out" in shown.parameters else []
    return [shown.replace(parameters=[*line, *last]) for line in listed]


def _complete(own: Signature, name: str, method: bool) -> list[Parameter]:
    """Return the parameters without what only old programs use, and with the keywords of creations."""
    found: list[Parameter] = []
    for at, each in enumerate(own.parameters.values()):
        if each.kind is _NAMED and each.name in ("given", "options"):
            found += _creation_keywords(name, bool(found) and found[0].name in ("input", "self"))
        elif each.kind is _NAMED or each.name == "late":
            continue
        elif method and not at:
            found.append(_SELF)
        elif not at and each.name == "self":
            found.append(each.replace(name="input"))
        elif each.default is ...:
            found.append(each.replace(default=Parameter.empty))
        elif each.kind is _SEVERAL and each.name == "sizes":
            found.append(each.replace(name="size", annotation="int"))
        else:
            found.append(each)
    return _drop_duplicates(found)


def _creation_keywords(name: str, like: bool) -> list[Parameter]:
    """Return the keywords of a function that makes a tensor: `like` another one or from sizes."""
    out = "" if like or name.endswith("_window") else "out: Tensor | None=None, "
    form = "layout: layout | None=None" if name.endswith("_like") else "layout: layout | None=strided"
    line = f"*, {out}dtype: dtype | None=None, {form}, device: Device=None, requires_grad: bool=False"
    line += ", pin_memory: bool=False"
    if name.endswith("_like"):
        line += ", memory_format: memory_format | None=preserve_format"
    elif name == "empty":
        line += ", memory_format: memory_format | None=contiguous_format"
    return _parse(line)


def _drop_duplicates(parameters: list[Parameter]) -> list[Parameter]:
    names = {each.name: each for each in reversed(parameters)}
    return [each for each in parameters if names[each.name] is each]


def _parse(line: str, shown: Signature | None = None, method: bool = False) -> list[Parameter]:
    """Return the parameters of a line of `_LINES`, or of a listed signature with the defaults of `shown`."""
    kind: Any = _POSITIONAL
    found = [_SELF] if method else []
    for part in filter(None, line.split(", ")):
        name, _, rest = part.partition(": ")
        name = f"{name}_" if name == "from" else name  # a word of Python's
        annotation, optional, default = rest.partition("=")
        if name == "*":
            kind = _KEYWORD
            continue
        value = _read_default(default, name, shown) if optional else Parameter.empty
        several = name.startswith("*")
        found.append(
            Parameter(name.lstrip("*"), _SEVERAL if several else kind, default=value, annotation=annotation)
        )
        kind = _KEYWORD if several else kind
    return found


def _read_default(text: str, name: str, shown: Signature | None) -> Any:
    if text:
        return getattr(typing, text) if text in _NAMED_DEFAULTS else literal_eval(text)
    known = shown.parameters.get(name) if shown is not None else None
    return ... if known is None or known.default is Parameter.empty else known.default


@cache
def _documented_lines() -> dict[str, str]:
    """Return the parameters of each line of `_LINES` by the name of its function."""
    found = {}
    for line in _LINES.strip().replace("\n    ", " ").split("\n"):
        name, _, parameters = line.removesuffix(")").partition("(")
        found[name] = parameters
    return found


_LINES = """
avg_pool1d(input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None=None, padding: IntOrTuple=0,
    ceil_mode: bool=False, count_include_pad: bool=True)
celu(input: Tensor, alpha: Number=1.0)
max_pool1d(input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None=None, padding: IntOrTuple=0,
    dilation: IntOrTuple=1, ceil_mode: bool=False)
max_pool2d(input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None=None, padding: IntOrTuple=0,
    dilation: IntOrTuple=1, ceil_mode: bool=False)
max_pool3d(input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None=None, padding: IntOrTuple=0,
    dilation: IntOrTuple=1, ceil_mode: bool=False)
rrelu(input: Tensor, lower: Number=0.125, upper: Number=0.3333333333333333, training: bool=False,
    generator: Generator | None=None)
selu(input: Tensor)
true_divide(input: Tensor, other: Tensor | Number, *, out: Tensor | None=None)
as_strided_copy(input: Tensor, size: IntTuple, stride: IntTuple, storage_offset: int | None=None, *,
    out: Tensor | None=None)
alias_copy(input: Tensor, *, out: Tensor | None=None)
arange(start: Number=0, end: Number | None=None, step: Number=1, *, out: Tensor | None=None, dtype: dtype | None=None,
    layout: layout | None=strided, device: Device=None, requires_grad: bool=False, pin_memory: bool=False)
celu_(input: Tensor, alpha: Number=1.0)
clamp_max(input: Tensor, max: Tensor | Number, *, out: Tensor | None=None)
clamp_max_(input: Tensor, max: Tensor | Number)
clamp_min(input: Tensor, min: Tensor | Number, *, out: Tensor | None=None)
clamp_min_(input: Tensor, min: Tensor | Number)
det(input: Tensor, *, out: Tensor | None=None)
detach_copy(input: Tensor, *, out: Tensor | None=None)
diagonal_copy(input: Tensor, offset: int=0, dim1: int=0, dim2: int=1, *, out: Tensor | None=None)
einsum(equation: str, *operands: Any)
empty_permuted(size: IntTuple, physical_layout: IntTuple, *, dtype: dtype | None=None, layout: layout | None=strided,
    device: Device=None, requires_grad: bool=False, pin_memory: bool=False)
empty_strided(size: IntTuple, stride: IntTuple, *, dtype: dtype | None=None, layout: layout | None=strided,
    device: Device=None, requires_grad: bool=False, pin_memory: bool=False)
expand_copy(input: Tensor, size: IntTuple, *, implicit: bool=False, out: Tensor | None=None)
flip(input: Tensor, dims: IntTuple)
gru(input: Tensor, hx: Tensor, params: TensorList, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool)
hamming_window(window_length: int, periodic: bool=True, alpha: float=0.54, beta: float=0.46, *,
    dtype: dtype | None=None, layout: layout | None=strided, device: Device=None, requires_grad: bool=False,
    pin_memory: bool=False)
heaviside(input: Tensor, values: Tensor, *, out: Tensor | None=None)
heaviside_(input: Tensor, values: Tensor)
lstm(input: Tensor, hx: TensorList, params: TensorList, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool)
max(input: Tensor, dim: int | None=None, keepdim: bool=False, *, out: Any=None)
max_pool1d_with_indices(input: Tensor, kernel_size: IntOrTuple, stride: IntOrTuple | None=None, padding: IntOrTuple=0,
    dilation: IntOrTuple=1, ceil_mode: bool=False)
min(input: Tensor, dim: int | None=None, keepdim: bool=False, *, out: Any=None)
narrow_copy(input: Tensor, dim: int, start: int, length: int, *, out: Tensor | None=None)
normal(mean: Tensor | float, std: Tensor | float=1.0, size: IntTuple | None=None, *, generator: Generator | None=None,
    out: Tensor | None=None, dtype: dtype | None=None, layout: layout | None=strided, device: Device=None,
    requires_grad: bool=False, pin_memory: bool=False)
orgqr(input: Tensor, tau: Tensor, *, out: Tensor | None=None)
permute_copy(input: Tensor, dims: IntTuple, *, out: Tensor | None=None)
randint(low: int=0, high: int | None=None, size: IntTuple | None=None, *, generator: Generator | None=None,
    out: Tensor | None=None, dtype: dtype | None=None, layout: layout | None=strided, device: Device=None,
    requires_grad: bool=False, pin_memory: bool=False)
randint_like(input: Tensor, low: int=0, high: int | None=None, *, generator: Generator | None=None,
    dtype: dtype | None=None, layout: layout | None=None, device: Device=None, requires_grad: bool=False,
    pin_memory: bool=False, memory_format: memory_format | None=preserve_format)
reshape(input: Tensor, shape: IntTuple)
rnn_relu(input: Tensor, hx: Tensor, params: TensorList, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool)
rnn_tanh(input: Tensor, hx: Tensor, params: TensorList, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool)
rrelu_(input: Tensor, lower: Number=0.125, upper: Number=0.3333333333333333, training: bool=False,
    generator: Generator | None=None)
select_copy(input: Tensor, dim: int, index: int, *, out: Tensor | None=None)
selu_(input: Tensor)
slice_copy(input: Tensor, dim: int=0, start: int | None=None, end: int | None=None, step: int=1, *,
    out: Tensor | None=None)
split_copy(input: Tensor, split_size: int, dim: int=0, *, out: TensorList | None=None)
split_with_sizes_copy(input: Tensor, split_sizes: IntTuple, dim: int=0, *, out: TensorList | None=None)
squeeze_copy(input: Tensor, dim: IntOrTuple | None=None, *, out: Tensor | None=None)
std(input: Tensor, dim: IntOrTuple | None=None, *, correction: Number=1, keepdim: bool=False, out: Tensor | None=None)
std_mean(input: Tensor, dim: IntOrTuple | None=None, *, correction: Number=1, keepdim: bool=False,
    out: TensorList | None=None)
swapaxes(input: Tensor, axis0: int, axis1: int)
swapaxes_(input: Tensor, axis0: int, axis1: int)
t_copy(input: Tensor, *, out: Tensor | None=None)
tensor_split(input: Tensor, indices_or_sections: Tensor | IntOrTuple, dim: int=0)
threshold_(input: Tensor, threshold: Number, value: Number)
tile(input: Tensor, dims: IntTuple)
transpose_copy(input: Tensor, dim0: int, dim1: int, *, out: Tensor | None=None)
unbind_copy(input: Tensor, dim: int=0, *, out: TensorList | None=None)
unfold_copy(input: Tensor, dimension: int, size: int, step: int, *, out: Tensor | None=None)
unsqueeze_copy(input: Tensor, dim: int, *, out: Tensor | None=None)
var(input: Tensor, dim: IntOrTuple | None=None, *, correction: Number=1, keepdim: bool=False, out: Tensor | None=None)
var_mean(input: Tensor, dim: IntOrTuple | None=None, *, correction: Number=1, keepdim: bool=False,
    out: TensorList | None=None)
view_as_complex_copy(input: Tensor, *, out: Tensor | None=None)
view_as_real_copy(input: Tensor, *, out: Tensor | None=None)
view_copy(input: Tensor, size: IntTuple, *, out: Tensor | None=None)
Tensor.addbmm_(batch1: Tensor, batch2: Tensor, *, beta: Number=1, alpha: Number=1)
Tensor.addmm_(mat1: Tensor, mat2: Tensor, *, beta: Number=1, alpha: Number=1)
Tensor.addmv_(mat: Tensor, vec: Tensor, *, beta: Number=1, alpha: Number=1)
Tensor.addr_(vec1: Tensor, vec2: Tensor, *, beta: Number=1, alpha: Number=1)
Tensor.baddbmm_(batch1: Tensor, batch2: Tensor, *, beta: Number=1, alpha: Number=1)
Tensor.count_nonzero(dim: IntOrTuple | None=None)
Tensor.dsplit(sections: IntOrTuple)
Tensor.expand(*size: int, implicit: bool=False)
Tensor.flip(*dims: int)
Tensor.hsplit(sections: IntOrTuple)
Tensor.new_full(size: IntTuple, fill_value: Number, *, dtype: dtype | None=None, device: Device=None,
    requires_grad: bool=False, layout: layout | None=strided, pin_memory: bool=False)
Tensor.permute(*dims: int)
Tensor.random_(from_: int=0, to: int | None=None, *, generator: Generator | None=None)
Tensor.repeat(*repeats: int)
Tensor.reshape(*shape: int)
Tensor.resize_(*sizes: int, memory_format: memory_format | None=contiguous_format)
Tensor.squeeze(dim: IntOrTuple | None=None)
Tensor.squeeze_(dim: IntOrTuple | None=None)
Tensor.tile(*dims: int)
Tensor.uniform_(from_: float=0, to: float=1, *, generator: Generator | None=None)
Tensor.view(*shape: int)
Tensor.vsplit(sections: IntOrTuple)
"""
