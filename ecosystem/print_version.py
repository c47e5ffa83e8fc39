"""Prints the versions of the `torch` package and of Python for the results."""

import platform

import torch

print(torch.__version__, platform.python_version())
