"""Pointwise functions, methods, dunders and in-place forms, bound from the operator table."""
