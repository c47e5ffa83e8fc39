"""The exceptions that Flambeau defines, and error texts that several packages use or that users search for."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class OutOfMemoryError(RuntimeError):
    """The error raised if a request exceeds the memory of a device. The request has changed nothing."""

    __module__ = "flambeau"  # tracebacks and pickles name the public place


class RaceError(RuntimeError):
    """The error raised if nothing orders two accesses to the same bytes, at least one of them a write."""

    __module__ = "flambeau"


class _LinAlgError(RuntimeError):
    """The error raised if a matrix is singular or not positive-definite, or an iteration does not converge."""

    __module__ = "flambeau.linalg"


LinAlgError = _LinAlgError  # PyTorch's class has the first name, and is shown by the second


class KernelPending(Exception):
    """The error raised if a fused kernel is loaded while a background thread still compiles it.

    Attributes:
        is_compiling: Returns True until the launch can be loaded.
        wait: Waits until then.
    """

    __module__ = "flambeau"

    def __init__(self, is_compiling: Callable[[], bool], wait: Callable[[], None]) -> None:
        super().__init__("the kernel is being compiled in the background; load it again later")
        self.is_compiling, self.wait = is_compiling, wait


class AcceleratorError(RuntimeError):
    """The error that PyTorch raises if a device reports a failure; Flambeau raises `DriverError`, a subclass."""

    __module__ = "flambeau"


class DriverError(AcceleratorError):
    """The error raised if a driver call fails. The text names the call, its code and the device.

    Attributes:
        late: True if work that was enqueued earlier has failed. Which call raises the error then depends on when that
            work has run.
        known: True if an earlier call has raised the error of that device.
    """

    __module__ = "flambeau"
    late = False
    known = False


class NotReadyError(DriverError):
    """The error raised if a result is read before the enqueued work that computes it is done."""


class NotSupportedError(RuntimeError):
    """The error raised for a feature that Flambeau, or a driver, lacks."""

    __module__ = "flambeau"


class InvalidAddressError(DriverError):
    """The error raised if accessed memory is not allocated: freed, out of bounds, or of another machine."""

    __module__ = "flambeau"


class HostMemoryError(DriverError):
    """An error if the host has no memory for the data of virtual GPUs, although the simulated device has room."""

    __module__ = "flambeau"


def late(error: DriverError) -> DriverError:
    """Mark an error as late and return it: see `DriverError`."""
    error.late = True
    return error


def unknown_device_type(kind: str, known: Iterable[str]) -> str:
    return f"Expected one of {', '.join(known)} device type at start of device string: {kind}"


_DISPATCH = {"vulkan": "Vulkan", "lazy": "Lazy"}  # device type -> PyTorch's name, if it is not in capitals
_CAFFE2 = ("mkldnn", "opengl", "opencl", "ideep")


NO_META_DATA = "Cannot copy out of meta tensor; no data!"


def absent_device(kind: str, copying: bool = False) -> Exception:
    """Return the error of PyTorch's CPU build for using a kind of device that it has only the name of.

    Args:
        kind: The device type.
        copying: True if a tensor was to be copied there, not created.
    """
    advice = "Flambeau has the devices 'cpu', 'cuda' and 'meta'."
    if kind in ("xpu", "mtia"):
        return AssertionError(f"Torch not compiled with {kind.upper()} enabled. {advice}")
    if kind in ("hpu", "privateuseone"):
        return ModuleNotFoundError(f"No module named 'torch.{kind}'. {advice}", name=f"torch.{kind}")
    if kind in _CAFFE2 or (copying and kind != "lazy"):
        return RuntimeError(f"PyTorch is not linked with support for {kind} devices. {advice}")
    return NotImplementedError(
        f"Could not run 'aten::empty.memory_format' with arguments from the '{_DISPATCH.get(kind, kind.upper())}' "
        f"backend. {advice}"
    )


def not_broadcastable(a: int, b: int, dim: int) -> str:
    return (
        f"The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {dim}"
    )


def dim_out_of_range(dim: int, limit: int) -> str:
    return f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got {dim})"


def devices_differ(first: object, second: object) -> str:
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}!"
    )


def argument_elsewhere(name: str, here: object, others: object, routine: str) -> str:
    """Return PyTorch's text for CUDA operators that check their arguments' devices before they run."""
    return (
        f"Expected all tensors to be on the same device, but got {name} is on {here}, different from other tensors on "
        f"{others} (when checking argument in method wrapper_CUDA_{routine})"
    )


def argument_type(function: str, name: str, position: int, expected: str, got: object) -> str:
    """Return the text of PyTorch's argument parser."""
    text = f"{function}(): argument '{name}' (position {position}) must be {expected}, not {type_name(got)}"
    if expected != "Tensor" or not hasattr(got, "__torch_function__"):
        return text
    return f"{text}. Import torch.overrides first, and this function asks its __torch_function__"


def type_name(got: object) -> str:
    """Return a value's type as PyTorch's argument parser names it: NumPy's with their module."""
    kind = type(got)
    return f"numpy.{kind.__name__}" if kind.__module__ == "numpy" else kind.__name__


FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
    "you must use the 'spawn' start method"
)
TIMED_INTERPROCESS = (
    "CUDA error: invalid argument: an event of several processes carries no timing: create it with interprocess=True "
    "and without enable_timing"
)
MACHINE_CLOSED = (
    "this tensor, stream or event belongs to virtual GPUs that have been closed or left; create it again on those "
    "that are in use now"
)
HOW_TO_GET_VIRTUAL = (
    "For virtual GPUs set FLAMBEAU_VIRTUAL_DEVICES=2, call flambeau.virtual(devices=2) before first use, "
    "or run the program with `flambeau run`."
)
VIRTUAL_INSTEAD = "For virtual GPUs set FLAMBEAU_DRIVER=virtual and FLAMBEAU_VIRTUAL_DEVICES=2."
MORE_DEVICES = (
    "Set FLAMBEAU_VIRTUAL_DEVICES=2, or `--devices 2`, or call flambeau.virtual(devices=2) before first use."
)
UNSET_VISIBLE = "Unset CUDA_VISIBLE_DEVICES, or list the devices to use: CUDA_VISIBLE_DEVICES=0."


def no_nvidia_driver(because: str, there: bool, advice: str = HOW_TO_GET_VIRTUAL) -> str:
    """Return the error for a missing NVIDIA driver. If `there` is False, no driver is installed; the text is
    PyTorch's.
    """
    return (
        f"Found no NVIDIA driver on your system{' that Flambeau can use' if there else ''}. Please check that you "
        "have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx "
        f"({because}). {advice}"
    )


def no_gpus(because: str, advice: str) -> str:
    return f"No CUDA GPUs are available: {because}. {advice}"


def invalid_ordinal(index: int, count: int) -> str:
    return (
        f"CUDA error: invalid device ordinal: cuda:{index} was asked for, and there "
        f"{'is 1 device, cuda:0' if count == 1 else f'are {count} devices, cuda:0 to cuda:{count - 1}'}"
    )
