"""torch.return_types as a module that programs can import; `torch` shows it as an attribute, too."""

import sys

from flambeau.tensor.arguments import return_types

sys.modules[__name__] = return_types
