"""The flags of matrix products, `torch.backends.cuda.matmul`; and how precise float32 is in what libraries compute."""

from __future__ import annotations

import os
from typing import Any

from flambeau.backends.flagged import Attributes, Flag
from flambeau.core.flags import flags

# Note [Precisions of float32]
# Products, convolutions and recurrent layers round float32 to TF32 or not. A program says so for one of them
# (`cuda.matmul`, `cudnn.conv`, `cudnn.rnn`), for all that CUDA's libraries compute (`cudnn`; so PyTorch has it) or for
# every backend (`torch.backends`), each by `fp32_precision`: "ieee", "tf32" or "none", nothing said. The narrowest that
# says something holds; where none does it is TF32, the documentation's default. Two older interfaces set the same
# values: `set_float32_matmul_precision` and `cuda.matmul.allow_tf32` those of products, `cudnn.allow_tf32` those of
# convolutions and recurrent layers.

_PRECISIONS = ("highest", "high", "medium")
_SCOPES = ("generic", "cuda", "matmul", "conv", "rnn")


class _Split:
    """The second flag of a pair, which is set with the first: True if sums may be split."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type | None = None) -> bool:
        return bool(getattr(flags, self._name)[1])


class _Reductions:
    """The first flag of a pair, which allows adding parts of sums in 16 bits."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, owner: object, kind: type | None = None) -> bool:
        return bool(getattr(flags, self._name)[0])

    def __set__(self, owner: object, value: Any) -> None:
        setattr(flags, self._name, _reductions(self._attribute, value))


class Precision:
    """An attribute that reads and sets the precision of float32 in a scope: see Note [Precisions of float32].

    Raises:
        RuntimeError: If it is set to an unknown precision.
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else precision_of(self._scope)

    def __set__(self, owner: object, value: Any) -> None:
        say_precision(value, self._scope)


class cuBLASModule(Attributes):
    """The settings of matrix products.

    allow_tf32 (True): whether those of float32 may round their inputs to TF32. fp32_precision: the same as "tf32"
    or "ieee", see Note [Precisions of float32]. allow_fp16_reduced_precision_reduction and
    allow_bf16_reduced_precision_reduction (True): whether parts of sums may be added in 16 bits, or a pair,
    whether they may and whether sums may be split; allow_fp16_accumulation (False): whether sums may be kept in
    16 bits. These three are kept for programs that set them: products are summed in float32, which all their
    values allow.

    Setting raises RuntimeError or TypeError: no bool; another precision.

    Raises:
        AttributeError: If any other name.
    """

    __slots__ = ()

    @property
    def allow_tf32(self) -> bool:
        return flags.matmul_allow_tf32

    @allow_tf32.setter
    def allow_tf32(self, value: Any) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(f"set_allow_tf32_cublas expects a bool, but got {type(value).__name__}")
        set_float32_matmul_precision("high" if value else "highest")

    fp32_precision = Precision("matmul")
    allow_fp16_reduced_precision_reduction = _Reductions("float16_reductions")
    allow_fp16_reduced_precision_reduction_split_k = _Split("float16_reductions")
    allow_bf16_reduced_precision_reduction = _Reductions("bfloat16_reductions")
    allow_bf16_reduced_precision_reduction_split_k = _Split("bfloat16_reductions")
    allow_fp16_accumulation = Flag("float16_accumulation", "set_allow_fp16_accumulation_cublas")


def is_tf32(precision: Any) -> bool:
    """Return True for "tf32" and False for "ieee".

    Raises:
        RuntimeError: If it is neither.
    """
    if precision not in ("tf32", "ieee"):
        raise RuntimeError(f"Unknown precision: {precision}: Flambeau has 'ieee' and 'tf32'")
    return bool(precision == "tf32")


def precision_of(scope: str) -> str:
    """Return the precision of a scope."""
    said = dict(zip(_SCOPES, flags.precisions, strict=True))
    wider = {"generic": (), "cuda": ("generic",)}.get(scope, ("cuda", "generic"))
    for each in (scope, *wider):
        if said[each] != "none":
            return said[each]
    return "none" if scope in ("generic", "cuda") else "tf32"


def say_precision(value: Any, *scopes: str) -> None:
    """Set the precision in scopes.

    Raises:
        RuntimeError: For an unknown precision.
    """
    if value != "none":
        is_tf32(value)
    said = dict(zip(_SCOPES, flags.precisions, strict=True)) | dict.fromkeys(scopes, value)
    flags.precisions = tuple(said.values())
    flags.matmul_allow_tf32 = precision_of("matmul") == "tf32"
    flags.cudnn_allow_tf32 = precision_of("conv") == "tf32"
    flags.rnn_allow_tf32 = precision_of("rnn") == "tf32"
    if flags.matmul_allow_tf32 != (flags.float32_matmul_precision != "highest"):
        flags.float32_matmul_precision = "high" if flags.matmul_allow_tf32 else "highest"


def say_tf32(allowed: bool, *scopes: str) -> None:
    """Set TF32 under the older names, which change nothing if the setting holds anyway."""
    say_precision("none", *scopes)
    wanted = "tf32" if allowed else "ieee"
    if any(precision_of(scope) != wanted for scope in scopes):
        say_precision(wanted, *scopes)


def _reductions(name: str, value: Any) -> tuple[bool, bool]:
    """Return (allowed, may be split) from one bool or a pair."""
    if isinstance(value, bool):
        return value, True
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} expects a bool or a tuple/list of bools, but got {type(value)!r}")
    if not 1 <= len(value) <= 2:
        raise TypeError(
            f"{name} expects at {'most two' if value else 'least one'} boolean argument{'s'[: len(value)]}"
        )
    for what, one in zip(("allow_reduced_precision", "allow_splitk"), value, strict=False):
        if not isinstance(one, bool):
            raise TypeError(f"{name} expects a bool for {what}, but got {type(one)!r}")
    allowed, split = (*value, True)[:2]
    if allowed and not split:
        raise RuntimeError(
            "allow_splitk=False is not supported when reduced precision reductions are enabled"
        )
    return allowed, split


def set_float32_matmul_precision(precision: str) -> None:
    """Set how float32 matrix products compute: "highest" (float32), "high" or "medium" (inputs rounded to TF32).

    Raises:
        RuntimeError: For a value that is not a str.
        ValueError: For any other str (PyTorch warns and changes nothing).
    """
    if not isinstance(precision, str):
        raise RuntimeError(f"set_float32_matmul_precision expects a str, but got {type(precision).__name__}")
    if precision not in _PRECISIONS:
        raise ValueError(f"{precision} is not one of 'highest', 'high', or 'medium'")
    say_tf32(precision != "highest", "matmul")
    flags.float32_matmul_precision = precision


def follow_environment() -> None:
    """Set the precision of float32 products, convolutions and recurrent layers to FLAMBEAU_FLOAT32_PRECISION.

    A program's own settings have precedence, because it makes them later.

    Raises:
        ValueError: If the variable is not "highest", "high" or "medium".
    """
    precision = os.environ.get("FLAMBEAU_FLOAT32_PRECISION")
    if not precision:
        return
    if precision not in _PRECISIONS:
        raise ValueError(f"FLAMBEAU_FLOAT32_PRECISION={precision!r}: must be one of {', '.join(_PRECISIONS)}")
    say_precision("ieee" if precision == "highest" else "tf32", "generic")
    flags.float32_matmul_precision = precision


def get_float32_matmul_precision() -> str:
    """Return the precision in which float32 matrix products compute: "highest", "high" or "medium"."""
    return flags.float32_matmul_precision


follow_environment()
