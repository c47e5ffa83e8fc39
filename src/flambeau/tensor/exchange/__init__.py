"""Import and export of tensors: data (Python values), transfer (copies between devices and dtypes), interop and dlpack
(other libraries), pickling, share and sharing (other processes).
"""
