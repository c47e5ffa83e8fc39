"""Operators of neural networks: convolution, pooling, interpolation, sampling (over windows), normalization, attention,
loss, ctc, recurrent; their gradients are in files of their own where they are long.
"""
