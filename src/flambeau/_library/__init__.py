"""Operators that programs define: `torch.library` and `torch.ops`."""
