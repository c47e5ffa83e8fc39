"""The signatures that `help()`, `inspect.signature` and the stubs show of `torch.*` functions and `Tensor` methods.

# Note [Documented signatures]
Problem: definitions accept more than PyTorch documents (NumPy's names, deprecated orders), or read keywords themselves:
`zeros(*sizes, **given)`.
Rule: the signature is that of the definition, without parameters for old programs and with the common keywords of
creation functions written out. Definitions that do not state the documented parameters list them in `signatures`.
Cost: a function has a `public.PublicSignature`, which imports this module only when its parameters are read.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from flambeau.tensor.arguments import typing
from flambeau.tensor.arguments.arg_errors import stated_signature
from flambeau.tensor.signatures import documented, signatures_of

_POSITIONAL, _KEYWORD = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
_SEVERAL, _NAMED = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
_SELF = Parameter("self", _POSITIONAL, annotation="Tensor")
_NAMED_DEFAULTS = {"strided", "contiguous_format", "preserve_format"}


def documented_signature(define: Callable[..., Any], name: str, method: bool) -> Signature:
    """Return the signature of a definition as the documentation shows it.

    Args:
        define: The definition, with or without functions around it.
        name: Its public name.
        method: True if it is a method of Tensor.
    """
    own = stated_signature(define)
    line = documented.get(f"Tensor.{name}" if method else name)
    if line is not None:
        found = _parse(line, method=method)
    elif method and name in documented:  # the signatures of the function, without its tensor
        found = [_SELF, *_parse(documented[name])[1:]]
    else:
        found = _complete(own, name, method)
    if method:
        found = [each for each in found if each.name != "out"]
    return own.replace(parameters=found)


def call_signatures(define: Callable[..., Any], name: str, method: bool) -> list[Signature]:
    """Return each way to call a public function: PyTorch's overloads, if its parser has several."""
    shown = documented_signature(define, name, method)
    listed = [_parse(line, shown, method) for line in signatures_of(name, method)]
    if not listed:
        return [shown]
    last = [shown.parameters["out"]] if "out" in shown.parameters else []
    return [shown.replace(parameters=[*line, *last]) for line in listed]


def _complete(own: Signature, name: str, method: bool) -> list[Parameter]:
    """Return the parameters with the keywords of creation functions, and without those that only old programs use."""
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
    """Return the keywords of a creation function: those of `like` functions or of functions of sizes."""
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
    """Return the parameters of a documented signature, or of a listed signature with the defaults of `shown`."""
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
