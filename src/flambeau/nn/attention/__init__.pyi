# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.nn.attention."""


from typing import Any

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any
from flambeau.nn.functional import attention_choice as choice
class SDPBackend(Enum):
    ERROR = -1
    MATH = choice.MATH
    FLASH_ATTENTION = choice.FLASH
    EFFICIENT_ATTENTION = choice.EFFICIENT
    CUDNN_ATTENTION = choice.CUDNN
    OVERRIDEABLE = 4

    def __int__(self) -> int:
        ...
@contextmanager
def sdpa_kernel(backends: Sequence[SDPBackend] | SDPBackend, set_priority: bool=...) -> Iterator[dict[str, Any]]:
    ...
from flambeau.nn.functional import attention_choice as choice
from flambeau.core.flags import flags as flags

