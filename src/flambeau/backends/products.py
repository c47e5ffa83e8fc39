"""The flags of matrix products: `torch.backends.cuda.matmul`, and one word for all (`set_float32_matmul_precision`)."""

from __future__ import annotations

from typing import Any

from flambeau.backends.flagged import Flag
from flambeau.core.flags import flags

_PRECISIONS = ("highest", "high", "medium")


class _Split:
    """The second of a pair of flags: whether sums may be split. It is set with the first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type | None = None) -> bool:
        return bool(getattr(flags, self._name)[1])


class _Reductions:
    """The first of a pair of flags: whether parts of sums may be added in 16 bits."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, owner: object, kind: type | None = None) -> bool:
        return bool(getattr(flags, self._name)[0])

    def __set__(self, owner: object, value: Any) -> None:
        setattr(flags, self._name, _reductions(self._attribute, value))


class cuBLASModule:
    """How matrix products may be computed.

    allow_tf32 (True): whether those of float32 may round their inputs to TF32. fp32_precision: the same as "tf32" or
    "ieee". allow_fp16_reduced_precision_reduction and allow_bf16_reduced_precision_reduction (True): whether parts of
    sums may be added in 16 bits, or a pair, whether they may and whether sums may be split; allow_fp16_accumulation
    (False): whether sums may be kept in 16 bits. These three are kept for programs that set them: products are summed
    in float32, which all their values allow.

    Setting raises RuntimeError or TypeError: no bool; another precision. AttributeError: another name.
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

    @property
    def fp32_precision(self) -> str:
        return "tf32" if flags.matmul_allow_tf32 else "ieee"

    @fp32_precision.setter
    def fp32_precision(self, value: Any) -> None:
        set_float32_matmul_precision("high" if is_tf32(value) else "highest")

    allow_fp16_reduced_precision_reduction = _Reductions("float16_reductions")
    allow_fp16_reduced_precision_reduction_split_k = _Split("float16_reductions")
    allow_bf16_reduced_precision_reduction = _Reductions("bfloat16_reductions")
    allow_bf16_reduced_precision_reduction_split_k = _Split("bfloat16_reductions")
    allow_fp16_accumulation = Flag("float16_accumulation", "set_allow_fp16_accumulation_cublas")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(vars(type(self)).get(name), "__set__"):
            raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")
        object.__setattr__(self, name, value)


def is_tf32(precision: Any) -> bool:
    """Whether "tf32" or "ieee". RuntimeError: neither."""
    if precision not in ("tf32", "ieee"):
        raise RuntimeError(f"Unknown precision: {precision}: Flambeau has 'ieee' and 'tf32'")
    return bool(precision == "tf32")


def _reductions(name: str, value: Any) -> tuple[bool, bool]:
    """(allowed, may be split) from one bool or a pair."""
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
    """How float32 matrix products compute: "highest" (float32), "high" or "medium" (inputs rounded to TF32).

    Raises RuntimeError: not a str. ValueError: another str (PyTorch warns and changes nothing).
    """
    if not isinstance(precision, str):
        raise RuntimeError(f"set_float32_matmul_precision expects a str, but got {type(precision).__name__}")
    if precision not in _PRECISIONS:
        raise ValueError(f"{precision} is not one of 'highest', 'high', or 'medium'")
    flags.float32_matmul_precision = precision
    flags.matmul_allow_tf32 = precision != "highest"


def get_float32_matmul_precision() -> str:
    """How float32 matrix products compute: "highest", "high" or "medium"."""
    return flags.float32_matmul_precision
