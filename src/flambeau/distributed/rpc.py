"""torch.distributed.rpc: importable, so that programs which only mention it run. Remote calls raise."""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

__path__ = ()  # its submodules are in core/absent_modules/names.txt
_HERE = "torch.distributed.rpc"
_ADVICE = "Use collectives and send or recv of torch.distributed, or the standard library's multiprocessing."

AllGatherStates = absent_class(_HERE, "AllGatherStates", _ADVICE)
BackendType = absent_class(_HERE, "BackendType", _ADVICE)
PyRRef = absent_class(_HERE, "PyRRef", _ADVICE)
RRef = absent_class(_HERE, "RRef", _ADVICE)
RpcAgent = absent_class(_HERE, "RpcAgent", _ADVICE)
RpcBackendOptions = absent_class(_HERE, "RpcBackendOptions", _ADVICE)
TensorPipeAgent = absent_class(_HERE, "TensorPipeAgent", _ADVICE)
TensorPipeRpcBackendOptions = absent_class(_HERE, "TensorPipeRpcBackendOptions", _ADVICE)
WorkerInfo = absent_class(_HERE, "WorkerInfo", _ADVICE)
enable_gil_profiling = absent_function(_HERE, "enable_gil_profiling", _ADVICE)
get_rpc_timeout = absent_function(_HERE, "get_rpc_timeout", _ADVICE)
get_worker_info = absent_function(_HERE, "get_worker_info", _ADVICE)
init_rpc = absent_function(_HERE, "init_rpc", _ADVICE)
method_factory = absent_function(_HERE, "method_factory", _ADVICE)
new_method = absent_function(_HERE, "new_method", _ADVICE)
remote = absent_function(_HERE, "remote", _ADVICE)
rpc_async = absent_function(_HERE, "rpc_async", _ADVICE)
rpc_sync = absent_function(_HERE, "rpc_sync", _ADVICE)
shutdown = absent_function(_HERE, "shutdown", _ADVICE)


def is_available() -> bool:
    """Return False, because Flambeau has no remote calls."""
    return False


explain_absent_names(globals(), _HERE)
