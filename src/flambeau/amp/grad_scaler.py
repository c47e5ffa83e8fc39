"""`GradScaler`: a factor of the loss that keeps small gradients from vanishing in float16, and adapts itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.device import device
from flambeau.core.dtype import float16, float32, int32
from flambeau.ops.multi_tensor.optimizer import unscale
from flambeau.runtime import system
from flambeau.tape.mode import recording
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.arithmetic import where
from flambeau.tensor.functions.foreach_update import update_flagged
from flambeau.tensor.tensor import Tensor


class OptState(Enum):
    """The progress of an optimizer since the last `update`."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def _fresh() -> dict[str, Any]:
    return {"stage": OptState.READY, "found_inf_per_device": {}}


class _DeviceCopies:
    """Copies of a number, one on each device, made when they are first needed."""

    def __init__(self, first: Any) -> None:
        self.first = first
        self.by_device: dict[device, Any] = {}

    def on(self, where: device) -> Any:
        if where not in self.by_device:
            self.by_device[where] = self.first.to(where, non_blocking=True, copy=True)
        return self.by_device[where]


class GradScaler:
    """A scaler of losses that unscales gradients and skips steps whose gradients are not finite.

    Args:
        device: The kind of device, "cuda" or "cpu".
        init_scale: Initial factor.
        growth_factor: Multiplies the factor after `growth_interval` steps in a row with finite gradients.
        backoff_factor: Multiplies the factor after a step with non-finite gradients.
        enabled: False makes `scale` and `update` do nothing, and `step` call the optimizer's.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and device == "cuda" and not system.is_available():
            warn_program(
                "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.", UserWarning
            )
            enabled = False
        self._device, self._enabled = device, enabled
        if enabled and growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if enabled and backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._init_scale, self._init_growth_tracker = init_scale, 0
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._scale: Any = None  # tensors, made on the device of what is scaled first
        self._growth_tracker: Any = None
        self._per_optimizer_states: defaultdict[int, dict[str, Any]] = defaultdict(_fresh)

    # -- a step -----------------------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """Return a loss, or an iterable of them, times the factor."""
        if not self._enabled:
            return outputs
        return self._scale_outputs(outputs, [])

    def _scale_outputs(self, x: Any, copies: list[_DeviceCopies]) -> Any:
        if isinstance(x, Tensor):
            if self._scale is None:
                self._start(x.meta.device)
            if x.meta.device is self._scale.device:
                return x * self._scale  # type: ignore[operator]
            if not copies:
                copies.append(_DeviceCopies(self._scale))
            return x * copies[0].on(x.meta.device)  # type: ignore[operator]
        if isinstance(x, Iterable):
            several = (self._scale_outputs(one, copies) for one in x)
            return type(x)(several) if isinstance(x, list | tuple) else several  # type: ignore[call-arg]
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def _start(self, where: device) -> None:
        self._scale = creation.full((), self._init_scale, dtype=float32, device=where)
        self._growth_tracker = creation.full((), self._init_growth_tracker, dtype=int32, device=where)

    def _require_scale(self, name: str) -> None:
        for attribute in ("_scale", "_growth_tracker"):
            if getattr(self, attribute) is None:
                raise AssertionError(
                    f"Attempted {name} but {attribute} is None.  This may indicate your script did not use "
                    "scaler.scale(loss or outputs) earlier in the iteration."
                )

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients by the factor, and record on the device whether all are finite. The host does not wait.

        Raises:
            RuntimeError: If it is called twice, or after the step.
            ValueError: If a gradient is float16.
        """
        if not self._enabled:
            return
        self._require_scale("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        with recording(False):
            inverse = self._scale.double().reciprocal().float()
            state["found_inf_per_device"] = _unscale_in_place(_gradients(optimizer), inverse)
        state["stage"] = OptState.UNSCALED

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Return `optimizer.step(*args, **kwargs)` if all gradients, which are unscaled first, are finite.

        Waits for the device, because the host must read whether they are.

        Raises:
            RuntimeError: For a second time, or with a closure.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._require_scale("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        if not state["found_inf_per_device"]:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        result = None
        if not sum(found.item() for found in state["found_inf_per_device"].values()):
            result = optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Compute the factor of the next iteration on the device, or set it to `new_scale`. The host does not wait."""
        if not self._enabled:
            return
        self._require_scale("update")
        with recording(False):
            if new_scale is None:
                self._update_scale()
            elif isinstance(new_scale, float):
                self._scale.fill_(new_scale)
            else:
                self._set_scale(new_scale)
        self._per_optimizer_states = defaultdict(_fresh)

    def _set_scale(self, new: Any) -> None:
        if new.device.type != self._device or new.numel() != 1 or new.requires_grad:
            raise AssertionError(
                "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with "
                "requires_grad=False."
            )
        self._scale.copy_(new)

    def _update_scale(self) -> None:
        scale, tracker = self._scale, self._growth_tracker
        founds = [
            found.to(scale.device, non_blocking=True)
            for state in self._per_optimizer_states.values()
            for found in state["found_inf_per_device"].values()
        ]
        if not founds:
            raise AssertionError("No inf checks were recorded prior to update.")
        found = founds[0] != 0
        for other in founds[1:]:
            found = found | (other != 0)
        count = tracker + 1
        full = count == self._growth_interval
        grown = scale * self._growth_factor
        kept = where(full & grown.isfinite(), grown, scale)
        scale.copy_(where(found, scale * self._backoff_factor, kept))
        tracker.copy_(count.masked_fill(found | full, 0))

    # -- what it is set to --------------------------------------------------------------------------------------

    def get_scale(self) -> float:
        """Return the factor now; 1.0 if disabled. Waits for the device."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else float(self._scale.item())

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        return self._init_growth_tracker if self._growth_tracker is None else int(self._growth_tracker.item())

    def get_growth_factor(self) -> float:
        """Return the factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Return the factor by which the scale shrinks."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale shrinks."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Return the number of steps in a row with finite gradients after which the factor grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set after how many steps in a row the factor grows."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """Return True if it does anything."""
        return self._enabled

    # -- checkpoints --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the settings as numbers; empty if disabled. Call this after `update`."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            RuntimeError: If it is empty.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._init_scale, self._init_growth_tracker = state_dict["scale"], state_dict["_growth_tracker"]
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        if self._scale is not None:
            self._scale.fill_(self._init_scale)
            self._growth_tracker.fill_(self._init_growth_tracker)

    def __getstate__(self) -> dict[str, Any]:
        if self._enabled and self._per_optimizer_states:
            raise AssertionError(
                "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after "
                "scaler.update()."
            )
        numbers = {"_init_scale": self.get_scale(), "_init_growth_tracker": self._get_growth_tracker()}
        return self.__dict__ | (numbers if self._enabled else {}) | {"_scale": None, "_growth_tracker": None}


def _gradients(optimizer: Any) -> list[Any]:
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(g.meta.dtype is float16 for g in grads):
        raise ValueError("Attempting to unscale FP16 gradients.")
    return grads


def _unscale_in_place(grads: list[Any], inverse: Any) -> dict[device, Any]:
    """Multiply gradients in place. Return device -> 1 if one of its gradients is not finite, else 0."""
    inverses, founds = (
        _DeviceCopies(inverse),
        _DeviceCopies(creation.zeros((), dtype=float32, device=inverse.device)),
    )
    batches: dict[Any, list[Any]] = {}
    for g in grads:
        batches.setdefault((g.meta.device, g.meta.dtype), []).append(g)
    for (here, _), several in batches.items():
        update_flagged(unscale, [several, [inverses.on(here)] * len(several)], founds.on(here))
    return founds.by_device
