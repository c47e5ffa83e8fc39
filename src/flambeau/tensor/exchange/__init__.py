"""Tensors from and to elsewhere: data (Python values), transfer (copies between devices and dtypes), interop and
dlpack (other libraries), pickling, share and sharing (other processes).
"""
