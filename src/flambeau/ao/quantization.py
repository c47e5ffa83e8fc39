"""torch.ao.quantization: stubs, which are identities in a model that is not quantized. Quantizing raises."""

from __future__ import annotations

from typing import Any

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.names import explain_absent_names
from flambeau.nn.modules.module import Module

_ADVICE = "Quantize with PyTorch: save the weights here by `torch.save(module.state_dict(), file)`."
_CLASSES = (
    "FakeQuantize", "FakeQuantizeBase", "FusedMovingAvgObsFakeQuantize", "HistogramObserver", "MinMaxObserver",
    "MovingAverageMinMaxObserver", "MovingAveragePerChannelMinMaxObserver", "NoopObserver", "ObserverBase",
    "PerChannelMinMaxObserver", "PlaceholderObserver", "QConfig", "QConfigMapping", "RecordingObserver",
)  # fmt: skip
_FUNCTIONS = (
    "add_quant_dequant", "convert", "default_eval_fn", "disable_fake_quant", "disable_observer", "enable_fake_quant",
    "enable_observer", "fuse_modules", "fuse_modules_qat", "get_default_qat_qconfig", "get_default_qat_qconfig_mapping",
    "get_default_qconfig", "get_default_qconfig_mapping", "get_observer_state_dict", "load_observer_state_dict",
    "prepare", "prepare_qat", "propagate_qconfig_", "quantize", "quantize_dynamic", "quantize_qat", "swap_module",
)  # fmt: skip


class QuantStub(Module):
    """A module that marks where inputs would be quantized, and returns them.

    Args:
        qconfig: The settings of quantization.
    """

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig:
            self.qconfig = qconfig

    def forward(self, x: Any) -> Any:
        """Return `x`."""
        return x


class DeQuantStub(QuantStub):
    """A module that marks where outputs would be converted back, and returns them."""


class QuantWrapper(Module):
    """A module between a `QuantStub` and a `DeQuantStub`.

    Args:
        module: The module.
    """

    def __init__(self, module: Module) -> None:
        super().__init__()
        qconfig = getattr(module, "qconfig", None)
        self.add_module("quant", QuantStub(qconfig))
        self.add_module("dequant", DeQuantStub(qconfig))
        self.add_module("module", module)
        self.train(module.training)

    def forward(self, X: Any) -> Any:  # noqa: N803
        """Run the module between the stubs `quant` and `dequant`."""
        return self.dequant(self.module(self.quant(X)))


_values: dict[str, Any] = {name: absent_class("torch.ao.quantization", name, _ADVICE) for name in _CLASSES}
_values |= {name: absent_function("torch.ao.quantization", name, _ADVICE) for name in _FUNCTIONS}
globals().update(_values)
__all__ = sorted(["DeQuantStub", "QuantStub", "QuantWrapper", *_values])
explain_absent_names(globals(), "torch.ao.quantization")
