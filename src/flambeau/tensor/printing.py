"""How tensors print: identical to PyTorch."""
