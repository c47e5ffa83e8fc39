"""Opened devices: machine (a driver with the contexts of its devices), configuration (which devices, from calls and the
environment), peers, communicators and device_ipc (memory of other devices and processes), library_plans,
blas_threads, doctor (what a process's devices are, in words).
"""
