# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.ao."""


from flambeau.core.names import explain_absent_names as explain_absent_names
from flambeau.ao import quantization as quantization

