"""Window functions, and Fourier transforms of overlapping frames of a signal: `torch.stft` and `torch.istft`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import FLOATING, float64
from flambeau.core.flags import flags
from flambeau.ops.linalg.fft import kaiser_window as kaiser
from flambeau.tensor.arguments.options import CreationOptions, Given, default_device, integer
from flambeau.tensor.arguments.public import both, function, functions
from flambeau.tensor.call import call
from flambeau.tensor.functions.fft import fft, ifft, irfft, rfft
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

# -- windows: symmetric, or one period of what repeats (`periodic`, the default) --------------------------------------


def _window(name: str, length: Any, periodic: bool, given: Given, shape: Any) -> Tensor:
    """Return `shape(samples, last)` at 0, 1, ..., computed in double precision. `last` is the position of the window's
    end.
    """
    length = integer(length, name, "window_length", 1)
    options = CreationOptions(name, given)
    kind = options.kind or flags.default_dtype
    where = options.device or default_device()
    if kind.category != FLOATING:
        raise RuntimeError(f"{name} expects floating point dtypes, got: {kind}")
    if length < 0:
        raise RuntimeError(f"{name} requires non-negative window_length, got window_length={length}")
    if length <= 1:
        made = functions["ones"](length, dtype=kind, device=where)
    else:
        samples = functions["arange"](length, dtype=float64, device=where)
        made = shape(samples, length if periodic else length - 1).to(kind)
    result: Tensor = made.pin_memory() if options.pin_memory else made
    return result


def _cosines(*factors: float) -> Any:
    """Return a sum of cosines of 0, 1, 2 periods."""

    def shape(samples: Any, last: int) -> Any:
        angle = samples * (2 * math.pi / last)
        total = (angle.cos() * factors[1]).add(factors[0])
        return total + (angle * 2).cos() * factors[2] if len(factors) == 3 else total

    return shape


@function
@signatures("""
hann_window(window_length: int, **made)
hann_window(window_length: int, periodic: bool, **made)
""")
def hann_window(window_length: int, periodic: bool = True, **given: Any) -> Tensor:
    """Return (1 - cos) / 2."""
    return _window("hann_window", window_length, periodic, given, _cosines(0.5, -0.5))  # type: ignore[arg-type]


@function
@signatures(
    """
hamming_window(window_length: int, **made)
hamming_window(window_length: int, periodic: bool, **made)
hamming_window(window_length: int, periodic: bool, alpha: float, **made)
hamming_window(window_length: int, periodic: bool, alpha: float, beta: float, **made)
""",
    shown="""
hamming_window(window_length: int, periodic: bool=True, alpha: float=0.54, beta: float=0.46, *,
    dtype: dtype | None=None, layout: layout | None=strided, device: Device=None, requires_grad: bool=False,
    pin_memory: bool=False)
""",
)
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **given: Any
) -> Tensor:
    """Return alpha - beta * cos."""
    return _window("hamming_window", window_length, periodic, given, _cosines(float(alpha), -float(beta)))  # type: ignore[arg-type]


@function
@signatures("""
blackman_window(window_length: int, **made)
blackman_window(window_length: int, periodic: bool, **made)
""")
def blackman_window(window_length: int, periodic: bool = True, **given: Any) -> Tensor:
    """Return 0.42 - cos / 2 + 0.08 * the cosine of twice the angle."""
    shape = _cosines(0.42, -0.5, 0.08)
    return _window("blackman_window", window_length, periodic, given, shape)  # type: ignore[arg-type]


@function
@signatures("""
bartlett_window(window_length: int, **made)
bartlett_window(window_length: int, periodic: bool, **made)
""")
def bartlett_window(window_length: int, periodic: bool = True, **given: Any) -> Tensor:
    """Return a triangle from 0 to 1 and back."""

    def shape(samples: Any, last: int) -> Any:
        return 1 - (samples * (2 / last) - 1).abs()

    return _window("bartlett_window", window_length, periodic, given, shape)  # type: ignore[arg-type]


@function
@signatures("""
kaiser_window(window_length: int, **made)
kaiser_window(window_length: int, periodic: bool, **made)
kaiser_window(window_length: int, periodic: bool, beta: float, **made)
""")
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, **given: Any) -> Tensor:
    """Return I0(beta * sqrt(1 - x^2)) / I0(beta) for x from -1 to 1."""

    def shape(samples: Any, last: int) -> Any:
        return call(kaiser, (float(beta),), (samples.numel(), float64, samples.device, last))

    return _window("kaiser_window", window_length, periodic, given, shape)  # type: ignore[arg-type]


# -- short-time transforms ----------------------------------------------------------------------------------------


@both
def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """Return the Fourier transforms of frames of `n_fft` points, `hop_length` (default n_fft // 4) apart.

    Args:
        center: Pad the signal by n_fft // 2 at both ends.
        onesided: Return only non-negative frequencies (default for real signals).
        return_complex: False adds a last dimension of size 2 instead.

    Returns:
        (batch if any, frequencies, frames).

    Raises:
        RuntimeError: If sizes do not match.
    """
    if window is None:
        _warn_of_no_window(
            ",which is known to cause spectral leakage. Other windows such as torch.hann_window or "
            "torch.hamming_window are recommended to reduce spectral leakage."
        )
    if center and align_to_window is not None:
        raise RuntimeError("stft align_to_window should only be set when center = false")
    if align_to_window:
        raise RuntimeError("stft with align_to_window: Flambeau lacks it")
    if input.dim() not in (1, 2):
        raise RuntimeError(f"stft({input.type()}{list(input.shape)}): expected a 1D or 2D tensor")
    x = _pad_signal(input, n_fft // 2, pad_mode) if center else input
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    about = (
        f"stft({_plain_type(x)}{list(x.meta.shape)}, n_fft={n_fft}, hop_length={hop}, win_length={length}, "
        f"window={_describe_window(window)}, normalized={int(normalized)}, onesided={_flag(onesided)}, "
        f"return_complex={_flag(return_complex)}, align_to_window={_flag(align_to_window)}) "
    )
    is_complex = x.dtype.is_complex or (window is not None and window.dtype.is_complex)
    if return_complex is None and not is_complex:
        raise RuntimeError(
            "stft requires the return_complex parameter be given for real inputs, and will further require that "
            "return_complex=True in a future PyTorch release."
        )
    _check_signal(about, x, n_fft, hop, length, window)
    one = not is_complex if onesided is None else onesided
    if one and is_complex:
        raise RuntimeError("Cannot have onesided output if window or input is complex")
    frames = x.unfold(-1, n_fft, hop)
    if window is None and length < n_fft:
        window = functions["ones"](length, dtype=x.dtype.to_real(), device=x.device)
    if window is not None:
        frames = frames * _center_window(window, n_fft)
    transform, norm = (rfft if one else fft), ("ortho" if normalized else None)
    spectrum = transform(frames, norm=norm).transpose(-2, -1)
    return spectrum if return_complex or return_complex is None else functions["view_as_real"](spectrum)


def _warn_of_no_window(why: str) -> None:
    """Warn of a missing window in PyTorch's words. `why` begins with the punctuation of the sentence before."""
    warn_program(
        f"A window was not provided. A rectangular window will be applied{why}To suppress this warning and use a "
        "rectangular window, explicitly set `window=torch.ones(n_fft, device=<device>)`.",
        UserWarning,
    )


def _check_signal(about: str, x: Tensor, n_fft: int, hop: int, length: int, window: Tensor | None) -> None:
    if x.dtype.category < FLOATING:
        raise RuntimeError(f"{about}: expected a tensor of floating point or complex values")
    if x.ndim not in (1, 2):
        raise RuntimeError(f"{about}: expected a 1D or 2D tensor")
    points = x.meta.shape[-1]
    if not 0 < n_fft <= points:
        raise RuntimeError(f"{about}: expected 0 < n_fft < {points}, but got n_fft={n_fft}")
    if hop <= 0:
        raise RuntimeError(f"{about}: expected hop_length > 0, but got hop_length={hop}")
    if not 0 < length <= n_fft:
        raise RuntimeError(f"{about}: expected 0 < win_length <= n_fft, but got win_length={length}")
    if window is not None and window.meta.shape != (length,):
        raise RuntimeError(
            f"{about}: expected a 1D window tensor of size equal to win_length={length}, but got window with size "
            f"{list(window.meta.shape)}"
        )


def _plain_type(x: Tensor) -> str:
    where = "cuda." if x.device.type == "cuda" else ""
    return f"torch.{where}{x.dtype.torch_name}Tensor"


def _describe_window(window: Tensor | None) -> str:
    return "None" if window is None else f"{_plain_type(window)}{{{list(window.meta.shape)}}}"


def _flag(value: bool | None) -> str:
    return "None" if value is None else str(int(value))


def _center_window(window: Tensor, n_fft: int) -> Tensor:
    """Return the window in the middle of a frame, with zeros around the window."""
    length = window.meta.shape[0]
    if length == n_fft:
        return window
    whole: Tensor = window.new_zeros(n_fft)
    whole.narrow(0, (n_fft - length) // 2, length).copy_(window)
    return whole


def _pad_signal(x: Tensor, pad: int, mode: str) -> Tensor:
    """Return the signal with `pad` more points at both ends."""
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    points = x.meta.shape[-1]
    if mode == "constant":
        ends = [x.new_zeros((*x.meta.shape[:-1], pad))] * 2
    elif mode == "replicate":
        ends = [x.narrow(-1, at, 1).expand(*x.meta.shape[:-1], pad) for at in (0, points - 1)]
    elif pad >= points + (mode == "circular"):
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding "
            f"({pad}, {pad}) at dimension 2 of input {[1] * (3 - x.ndim) + list(x.meta.shape)}"
        )
    elif mode == "reflect":
        ends = [x.narrow(-1, at, pad).flip(-1) for at in (1, points - 1 - pad)]
    else:
        ends = [x.narrow(-1, at, pad) for at in (points - pad, 0)]
    joined: Tensor = functions["cat"]([ends[0], x, ends[1]], -1)
    return joined


@both
def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """Return the signal whose `stft` this is: the sum of the frames divided by the sum of the windows' squares.

    Raises:
        RuntimeError: If sizes do not match, or the windows' squares sum to 0 at a point.
    """
    if window is None:
        _warn_of_no_window(".Please provide the same window used by stft to make the inversion lossless.")
    hop = n_fft // 4 if hop_length is None else hop_length
    size = n_fft if win_length is None else win_length
    about = (
        f"istft({input.device.type.upper()}{input.dtype.torch_name}Type{list(input.meta.shape)}, n_fft={n_fft}, "
        f"hop_length={hop}, win_length={size}, window={_describe_window(window)}, center={int(center)}, "
        f"normalized={int(normalized)}, onesided={_flag(onesided)}, length={length}, "
        f"return_complex={int(return_complex)}) "
    )
    one = _check_spectrum(about, input, n_fft, hop, size, window, onesided)
    if one and (return_complex or (window is not None and window.dtype.is_complex)):
        raise RuntimeError("Cannot have onesided output if window or input is complex")
    spectra = input.transpose(-2, -1) if input.ndim == 3 else input.transpose(-2, -1).unsqueeze(0)
    norm = "ortho" if normalized else None
    if not one and not return_complex:  # the omitted half belongs to a real signal
        spectra = spectra.narrow(-1, 0, n_fft // 2 + 1)
    frames: Any = ifft(spectra, norm=norm) if return_complex else irfft(spectra, n_fft, norm=norm)
    kind = frames.dtype.to_real()
    weight = functions["ones"](size, dtype=kind, device=input.device) if window is None else window
    weight = _center_window(weight, n_fft)
    total = _added_up(frames * weight, hop)
    weights = _added_up(weight.square().expand(1, frames.meta.shape[1], n_fft), hop)
    start = n_fft // 2 if center else 0
    points = total.meta.shape[1]
    end = start + length if length is not None else points - start
    kept = max(min(end, points) - start, 0)
    total, weights = total.narrow(1, start, kept), weights.narrow(1, start, kept)
    if not bool((weights.abs().min() > 1e-11).item()):
        raise RuntimeError(f"{about}window overlap add min: 1\n[ {input.device.type.upper()}BoolType{{}} ]")
    result = total / weights
    if end > points:
        warn_program(
            "The length of signal is shorter than the length parameter. Result is being padded with zeros in the "
            "tail. Please check your center and hop_length settings.",
            UserWarning,
        )
        tail = result.new_zeros((result.meta.shape[0], end - points))
        result = functions["cat"]([result, tail], 1)
    signal: Tensor = result if input.ndim == 3 else result.squeeze(0)
    return signal


def _check_spectrum(
    about: str, x: Tensor, n_fft: int, hop: int, size: int, window: Tensor | None, onesided: bool | None
) -> bool:
    """Return True if the spectra hold half of the frequencies."""
    if not x.dtype.is_complex:
        raise RuntimeError(
            "istft requires a complex-valued input tensor matching the output from stft with return_complex=True."
        )
    if not x.numel():
        raise RuntimeError(f"{about}: input tensor cannot be empty.")
    if x.ndim not in (2, 3):
        raise RuntimeError(f"{about}: expected a tensor with 3 or 4 dimensions, but got {x.ndim + 1}")
    rows = x.meta.shape[-2]
    one = rows != n_fft if onesided is None else onesided
    wanted = n_fft // 2 + 1 if one else n_fft
    if rows != wanted:
        formula = "n_fft / 2 + 1 when onesided=True" if one else "n_fft when onesided=False"
        raise RuntimeError(
            f"{about}: expected the frequency dimension (3rd to the last) of the input tensor to match {formula}, "
            f"but got {rows}"
        )
    if not 0 < hop <= size:
        raise RuntimeError(f"{about}: expected 0 < hop_length <= win_length")
    if not 0 < size <= n_fft:
        raise RuntimeError(f"{about}: expected 0 < win_length <= n_fft")
    if window is not None and window.meta.shape != (size,):
        raise RuntimeError(f"{about}: Invalid window shape. window has to be 1D and length of `win_length`")
    return one


def _added_up(frames: Any, hop: int) -> Any:
    """Return frames of shape (batch, frames, points) summed, each shifted by `hop` points from the previous one."""
    batch, count, points = frames.meta.shape
    arange, where = functions["arange"], frames.device
    places = (arange(count, device=where) * hop).unsqueeze(1) + arange(points, device=where)
    total = frames.new_zeros((batch, points + hop * (count - 1)))
    return total.index_add_(1, places.reshape(-1), frames.reshape(batch, -1))
