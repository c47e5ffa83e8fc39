# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.signal.windows."""


from flambeau.signal.windows.windows import bartlett as bartlett
from flambeau.signal.windows.windows import blackman as blackman
from flambeau.signal.windows.windows import cosine as cosine
from flambeau.signal.windows.windows import exponential as exponential
from flambeau.signal.windows.windows import gaussian as gaussian
from flambeau.signal.windows.windows import general_cosine as general_cosine
from flambeau.signal.windows.windows import general_hamming as general_hamming
from flambeau.signal.windows.windows import hamming as hamming
from flambeau.signal.windows.windows import hann as hann
from flambeau.signal.windows.windows import kaiser as kaiser
from flambeau.signal.windows.windows import nuttall as nuttall
from flambeau.signal.windows import windows as windows

