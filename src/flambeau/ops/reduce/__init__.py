"""Operators that combine elements along dimensions: reduction and its gradients (reduction_gradients), reduce_rows
(arithmetic on rows, on the host), scan, softmax and softmax_gradients.
"""
