# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.signal."""


from flambeau.signal import windows as windows

