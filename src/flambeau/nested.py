"""torch.nested: tensors of rows of several lengths. The names can be imported; using one raises and says what to do."""

from __future__ import annotations

from flambeau.core.absent import absent_function
from flambeau.core.public_names import explain_absent_names

__all__ = [
    "as_nested_tensor",
    "masked_select",
    "narrow",
    "nested_tensor",
    "nested_tensor_from_jagged",
    "to_padded_tensor",
]

_ADVICE = "Pad rows with torch.nn.utils.rnn.pad_sequence and use a mask, or concatenate them and keep their offsets."

as_nested_tensor = absent_function("torch.nested", "as_nested_tensor", _ADVICE)
masked_select = absent_function("torch.nested", "masked_select", _ADVICE)
narrow = absent_function("torch.nested", "narrow", _ADVICE)
nested_tensor = absent_function("torch.nested", "nested_tensor", _ADVICE)
nested_tensor_from_jagged = absent_function("torch.nested", "nested_tensor_from_jagged", _ADVICE)
to_padded_tensor = absent_function("torch.nested", "to_padded_tensor", _ADVICE)

explain_absent_names(globals(), "torch.nested")
