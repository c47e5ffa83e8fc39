"""torch.export: programs as graphs. The names can be imported; using one raises and says what to do."""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

__path__ = ()  # its submodules are in core/absent_modules/names.txt
__all__ = [
    "AdditionalInputs",
    "Constraint",
    "CustomDecompTable",
    "Dim",
    "ExportBackwardSignature",
    "ExportGraphSignature",
    "ExportedProgram",
    "FlatArgsAdapter",
    "ModuleCallEntry",
    "ModuleCallSignature",
    "ShapesCollection",
    "UnflattenedModule",
    "default_decompositions",
    "dims",
    "draft_export",
    "export",
    "load",
    "register_dataclass",
    "save",
    "unflatten",
]

_ADVICE = "Run the module itself; torch.fx.symbolic_trace gives its graph."

AdditionalInputs = absent_class("torch.export", "AdditionalInputs", _ADVICE)
Constraint = absent_class("torch.export", "Constraint", _ADVICE)
CustomDecompTable = absent_class("torch.export", "CustomDecompTable", _ADVICE)
Dim = absent_class("torch.export", "Dim", _ADVICE)
ExportBackwardSignature = absent_class("torch.export", "ExportBackwardSignature", _ADVICE)
ExportedProgram = absent_class("torch.export", "ExportedProgram", _ADVICE)
ExportGraphSignature = absent_class("torch.export", "ExportGraphSignature", _ADVICE)
FlatArgsAdapter = absent_class("torch.export", "FlatArgsAdapter", _ADVICE)
ModuleCallEntry = absent_class("torch.export", "ModuleCallEntry", _ADVICE)
ModuleCallSignature = absent_class("torch.export", "ModuleCallSignature", _ADVICE)
ShapesCollection = absent_class("torch.export", "ShapesCollection", _ADVICE)
UnflattenedModule = absent_class("torch.export", "UnflattenedModule", _ADVICE)
draft_export = absent_function("torch.export", "draft_export", _ADVICE)
export = absent_function("torch.export", "export", _ADVICE)
load = absent_function("torch.export", "load", _ADVICE)
register_dataclass = absent_function("torch.export", "register_dataclass", _ADVICE)
save = absent_function("torch.export", "save", _ADVICE)
unflatten = absent_function("torch.export", "unflatten", _ADVICE)
dims = absent_function("torch.export", "dims", _ADVICE)
default_decompositions = absent_function("torch.export", "default_decompositions", _ADVICE)

explain_absent_names(globals(), "torch.export")
