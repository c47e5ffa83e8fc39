# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.multiprocessing."""


from typing import Any

from typing import Any as _Any
def Queue(maxsize: int=...) -> _Any:
    ...
def JoinableQueue(maxsize: int=...) -> _Any:
    ...
def Pool(processes: int | None=..., initializer: _Any=..., initargs: _Any=..., maxtasksperchild: int | None=...) -> _Any:
    ...
def get_all_sharing_strategies() -> set[str]:
    ...
def get_sharing_strategy() -> str:
    ...
def set_sharing_strategy(new_strategy: str) -> None:
    ...
from flambeau.multiprocessing.context import Process as Process
from flambeau.multiprocessing.spawn import ProcessContext as ProcessContext
from flambeau.multiprocessing.spawn import ProcessExitedException as ProcessExitedException
from flambeau.multiprocessing.spawn import ProcessRaisedException as ProcessRaisedException
from flambeau.multiprocessing.spawn import SpawnContext as SpawnContext
from flambeau.multiprocessing import context as context
from flambeau.multiprocessing.context import get_context as get_context
from flambeau.multiprocessing import queue as queue
from multiprocessing import reduction as reducer
from flambeau.multiprocessing import reductions as reductions
from flambeau.multiprocessing.spawn import spawn as spawn
from flambeau.multiprocessing.spawn import start_processes as start_processes

Array: Any
class AuthenticationError:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
Barrier: Any
BoundedSemaphore: Any
class BufferTooShort:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
Condition: Any
Event: Any
Lock: Any
Manager: Any
Pipe: Any
class ProcessError:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
RLock: Any
RawArray: Any
RawValue: Any
Semaphore: Any
SimpleQueue: Any
class TimeoutError:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
Value: Any
def active_children() -> Any: ...
allow_connection_pickling: Any
cpu_count: Any
def current_process() -> Any: ...
freeze_support: Any
get_all_start_methods: Any
get_logger: Any
get_start_method: Any
log_to_stderr: Any
def parent_process() -> Any: ...
set_executable: Any
set_forkserver_preload: Any
set_start_method: Any
