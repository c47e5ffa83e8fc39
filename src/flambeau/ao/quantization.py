"""torch.ao.quantization: stubs, which are identities in a model that is not quantized. Quantizing raises."""

from __future__ import annotations

from typing import Any

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.module import Module

_ADVICE = "Quantize with PyTorch: save the weights here by `torch.save(module.state_dict(), file)`."
_CLASSES = (
    "AffineQuantizedObserverBase", "FakeQuantize", "FakeQuantizeBase", "FixedQParamsFakeQuantize",
    "FixedQParamsObserver", "FusedMovingAvgObsFakeQuantize", "Granularity", "HistogramObserver", "MappingType",
    "MinMaxObserver", "MovingAverageMinMaxObserver", "MovingAveragePerChannelMinMaxObserver", "NoopObserver",
    "ObserverBase", "PerAxis", "PerBlock", "PerChannelMinMaxObserver", "PerGroup", "PerRow", "PerTensor",
    "PerToken", "PlaceholderObserver", "QConfig", "QConfigDynamic", "QConfigMapping", "QuantType",
    "RecordingObserver", "ReuseInputObserver", "TorchAODType", "UniformQuantizationObserverBase", "ZeroPointDomain",
    "default_debug_observer", "default_placeholder_observer", "default_reuse_input_observer",
)  # fmt: skip
_FUNCTIONS = (
    "add_quant_dequant", "convert", "convert_dynamic_jit", "convert_jit", "default_eval_fn", "disable_fake_quant",
    "disable_observer", "enable_fake_quant", "enable_observer", "fuse_conv_bn", "fuse_conv_bn_jit",
    "fuse_conv_bn_relu", "fuse_convtranspose_bn", "fuse_linear_bn", "fuse_modules", "fuse_modules_qat",
    "get_block_size", "get_default_compare_output_module_list", "get_default_custom_config_dict",
    "get_default_dynamic_quant_module_mappings", "get_default_dynamic_sparse_quant_module_mappings",
    "get_default_float_to_quantized_operator_mappings", "get_default_qat_module_mappings",
    "get_default_qat_qconfig", "get_default_qat_qconfig_dict", "get_default_qat_qconfig_mapping",
    "get_default_qconfig", "get_default_qconfig_dict", "get_default_qconfig_mapping",
    "get_default_qconfig_propagation_list", "get_default_static_quant_module_mappings",
    "get_default_static_quant_reference_module_mappings", "get_default_static_sparse_quant_module_mappings",
    "get_dynamic_quant_module_class", "get_embedding_qat_module_mappings",
    "get_embedding_static_quant_module_mappings", "get_fuser_method", "get_fuser_method_new",
    "get_observer_state_dict", "get_quantized_operator", "get_static_quant_module_class",
    "load_observer_state_dict", "no_observer_set", "prepare", "prepare_dynamic_jit", "prepare_jit", "prepare_qat",
    "propagate_qconfig_", "qconfig_equals", "quantize", "quantize_dynamic", "quantize_dynamic_jit", "quantize_jit",
    "quantize_qat", "script_qconfig", "script_qconfig_dict", "swap_module",
)  # fmt: skip
# settings and factories of observers, which are objects in PyTorch
_VALUES = (
    "ObserverOrFakeQuantize", "QConfigAny", "default_activation_only_qconfig",
    "default_affine_fixed_qparams_fake_quant", "default_affine_fixed_qparams_observer", "default_debug_qconfig",
    "default_dynamic_fake_quant", "default_dynamic_qconfig", "default_dynamic_quant_observer",
    "default_embedding_fake_quant", "default_embedding_fake_quant_4bit", "default_fake_quant",
    "default_fixed_qparams_range_0to1_fake_quant", "default_fixed_qparams_range_0to1_observer",
    "default_fixed_qparams_range_neg1to1_fake_quant", "default_fixed_qparams_range_neg1to1_observer",
    "default_float_qparams_observer", "default_float_qparams_observer_4bit", "default_fused_act_fake_quant",
    "default_fused_per_channel_wt_fake_quant", "default_fused_wt_fake_quant", "default_histogram_fake_quant",
    "default_histogram_observer", "default_observer", "default_per_channel_qconfig",
    "default_per_channel_weight_fake_quant", "default_per_channel_weight_observer", "default_qat_qconfig",
    "default_qat_qconfig_v2", "default_qconfig", "default_symmetric_fixed_qparams_fake_quant",
    "default_symmetric_fixed_qparams_observer", "default_weight_fake_quant", "default_weight_observer",
    "default_weight_only_qconfig", "float16_dynamic_qconfig", "float16_static_qconfig",
    "float_qparams_weight_only_qconfig", "fused_per_channel_wt_fake_quant_range_neg_127_to_127",
    "fused_wt_fake_quant_range_neg_127_to_127", "per_channel_dynamic_qconfig",
    "per_channel_weight_observer_range_neg_127_to_127", "weight_observer_range_neg_127_to_127",
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


_values: dict[str, Any] = {
    name: absent_class("torch.ao.quantization", name, _ADVICE) for name in (*_CLASSES, *_VALUES)
}
_values |= {name: absent_function("torch.ao.quantization", name, _ADVICE) for name in _FUNCTIONS}
globals().update(_values)
__path__ = ()  # its submodules are in core/absent_modules/names.txt
__all__ = sorted(["DeQuantStub", "QuantStub", "QuantWrapper", *_values])
explain_absent_names(globals(), "torch.ao.quantization")
