"""Write src/flambeau/_aten/schemas.txt: PyTorch's declarations of the operators that Flambeau can compute.

    python tools/aten_schemas.py

Needs PyTorch's CPU build. Run it after a public function was added that `torch.ops.aten` has, too.
"""

from __future__ import annotations

from pathlib import Path

import torch

from flambeau._aten.kernels import has_kernel
from flambeau._library.schema import parse_schema

TARGET = Path(__file__).parents[1] / "src" / "flambeau" / "_aten" / "schemas.txt"
SKIPPED_TYPES = ("Dict", "Dimname", "Storage", "Stream", "Future", "RRef", "QScheme", "__torch__", "_test_")
SKIPPED_TAGS = {"pt2_compliant_tag", "generated"}


def lines_of(name: str) -> list[str]:
    """Return the lines of an operator's overloads, in the order in which PyTorch tries them."""
    lines = []
    packet = getattr(torch.ops.aten, name)
    for overload in (getattr(packet, each) for each in packet.overloads()):
        text = str(overload._schema)
        if "Tensor" not in text or any(word in text for word in SKIPPED_TYPES):
            continue
        try:
            composite = torch._C._dispatch_has_kernel_for_dispatch_key(
                overload.name(), "CompositeImplicitAutograd"
            )
            schema = parse_schema(text)
        except RuntimeError:  # a function of TorchScript
            continue
        if not has_kernel(schema):
            continue
        tags = sorted({tag.name for tag in overload.tags} - SKIPPED_TAGS) + ["composite"] * composite
        lines.append(text.removeprefix("aten::") + (f"  # {' '.join(tags)}" if tags else ""))
    return lines


def main() -> None:
    """Write the file."""
    names = sorted(
        {
            s.name.removeprefix("aten::")
            for s in torch._C._jit_get_all_schemas()
            if s.name.startswith("aten::")
        }
    )
    lines = [line for name in names for line in lines_of(name)]
    TARGET.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} overloads in {TARGET}")


if __name__ == "__main__":
    main()
