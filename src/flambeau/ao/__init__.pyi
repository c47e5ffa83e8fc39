# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.ao."""


from flambeau.ao import quantization as quantization

