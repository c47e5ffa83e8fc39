"""Operators of neural networks: convolution, pooling, interpolation, sampling (over windows), normalization, attention,
loss, ctc, recurrent; long gradients are in separate files.
"""
