"""Builders for neural networks: convolution (cuDNN or im2col) and direct_convolution, pooling, resampling, sampling,
padding, normalizing and normalizing_gradients, softmax, losses, attention and attention_gradients, rnn_cells.
"""
