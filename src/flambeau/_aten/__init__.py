"""torch.ops.aten: PyTorch's names, overloads and schemas of the operators that Flambeau has."""
