"""torch.onnx: importable, so that programs which only mention it run. Exporting raises."""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

__path__ = ()  # its submodules are in core/absent_modules/names.txt
__all__ = [
    "ExportableModule",
    "InputObserver",
    "ONNXProgram",
    "OnnxExporterError",
    "export",
    "is_in_onnx_export",
]

_ADVICE = "Export with PyTorch: save the weights here by `torch.save(module.state_dict(), file)` and load them there."


class OnnxExporterError(RuntimeError):
    """The error of an export."""


def is_in_onnx_export() -> bool:
    """Return False, because Flambeau exports nothing."""
    return False


export = absent_function("torch.onnx", "export", _ADVICE)
ExportableModule = absent_class("torch.onnx", "ExportableModule", _ADVICE)
InputObserver = absent_class("torch.onnx", "InputObserver", _ADVICE)
ONNXProgram = absent_class("torch.onnx", "ONNXProgram", _ADVICE)

JitScalarType = absent_class("torch.onnx", "JitScalarType", _ADVICE)
register_custom_op_symbolic = absent_function("torch.onnx", "register_custom_op_symbolic", _ADVICE)
select_model_mode_for_export = absent_function("torch.onnx", "select_model_mode_for_export", _ADVICE)
unregister_custom_op_symbolic = absent_function("torch.onnx", "unregister_custom_op_symbolic", _ADVICE)

explain_absent_names(globals(), "torch.onnx")
