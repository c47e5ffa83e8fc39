"""Pointwise operators.

pointwise is the family: dtype_promotion decides dtypes, pointwise_body is the reference implementation; compute_dtype
converts for other families' reference implementations. Then the tables: pointwise_arithmetic, pointwise_logic,
pointwise_functions, pointwise_special, activation, pointwise_backward, pointwise_several; erf. User kernels: expression
(graphs of pointwise operators), expression_text (Python's syntax), expression_cpp (C++).
"""
