"""`device`: the device of a tensor, an interned value."""

from __future__ import annotations

from typing import Any

from flambeau.core import errors
from flambeau.core.brief import brief, brief_text
from flambeau.core.callsite import warn_program

# PyTorch's device types, in the order of its error. Tensors exist on "cpu", "cuda" and "meta" only.
_TYPES = (
    "cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga", "maia", "xla", "lazy",
    "vulkan", "mps", "meta", "hpu", "mtia", "privateuseone",
)  # fmt: skip
_MOST = (1 << 15) - 1  # the largest index; a name of each device is kept
_interned: dict[tuple[str, int | None], device] = {}


class device:  # PyTorch's public name
    """A device by its name: `device("cuda:1")`, `device("cuda", 1)`, `device("cuda")`, `device(1)`.

    Without an index, "cuda" means the current CUDA device at the time of use.
    A bare int means that CUDA device. Other kinds of PyTorch's ("mps", "xla") are names that can be compared;
    a tensor on one of them raises. Instances are interned, so `is` and `==` agree.

    Raises:
        RuntimeError: Unknown device type, malformed string, negative index.
        ValueError: An index of more than 15 bits.
        TypeError: An argument of another type.
    """

    __slots__ = ("index", "type")
    type: str
    index: int | None

    def __new__(cls, type: Any, index: int | None = None) -> device:
        if type.__class__ is device:
            if index is not None:
                raise TypeError("device(): a device and an index cannot be given together")
            return type
        if isinstance(type, str):
            key = _parse(type, index)
        elif isinstance(type, int) and not isinstance(type, bool):
            if index is not None:
                raise TypeError("device(): an int names a CUDA device and takes no second index")
            key = ("cuda", _check_index(type))
        else:
            raise TypeError(
                f"device(): argument 'type' must be str, int or torch.device, not {type.__class__.__name__}"
            )
        self = _interned.get(key)
        if self is None:
            self = object.__new__(cls)
            object.__setattr__(self, "type", key[0])
            object.__setattr__(self, "index", key[1])
            self = _interned.setdefault(key, self)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"attribute '{name}' of 'torch.device' objects is not writable")

    def __repr__(self) -> str:
        if self.index is None:
            return f"device(type='{self.type}')"
        return f"device(type='{self.type}', index={self.index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (device, (self.type,) if self.index is None else (self.type, self.index))


def _parse(text: str, index: int | None) -> tuple[str, int | None]:
    if not text:
        raise RuntimeError("Device string must not be empty")
    kind, colon, digits = text.partition(":")
    if not kind.replace("_", "a").isalpha():
        raise RuntimeError(f"Invalid device string: '{brief_text(text)}'")
    if kind not in _TYPES:
        raise RuntimeError(errors.unknown_device_type(brief_text(kind), _TYPES))
    if kind == "mkldnn":
        warn_program(
            "'mkldnn' is no longer used as device type. So torch.device('mkldnn') will be deprecated and removed in "
            "the future. Please use other valid device types instead.",
            UserWarning,
        )
    if not colon:
        return kind, None if index is None else _check_index(index)
    if index is not None:
        raise RuntimeError(
            f"type (string) must not include an index because index was passed explicitly: {brief_text(text)}"
        )
    if not digits.isascii() or not digits.isdigit() or (len(digits) > 1 and digits[0] == "0"):
        raise RuntimeError(f"Invalid device string: '{brief_text(text)}'")
    if len(digits) > 5 or int(digits) > _MOST:
        raise RuntimeError(
            f"Could not parse device index '{brief_text(digits)}' in device string '{brief_text(text)}': the largest "
            f"is {_MOST}"
        )
    return kind, int(digits)


def _check_index(index: int) -> int:
    if index < 0:
        raise RuntimeError(f"Device index must not be negative, got {brief(index)}")
    if index > _MOST:
        raise ValueError(f"Device index must be at most {_MOST}, got {brief(index)}")
    return int(index)


CPU = device("cpu")
META = device("meta")
