# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.autograd."""


from typing import Any

from typing import Any
def backward(tensors: Any, grad_tensors: Any=..., retain_graph: bool | None=..., create_graph: bool=..., grad_variables: Any=..., inputs: Any=...) -> None:
    ...
def grad(outputs: Any, inputs: Any, grad_outputs: Any=..., retain_graph: bool | None=..., create_graph: bool=..., only_inputs: bool=..., allow_unused: bool | None=..., is_grads_batched: bool=..., materialize_grads: bool=...) -> tuple[Any, ...]:
    ...
from flambeau.autograd.function import Function as Function
from flambeau.autograd.gradcheck import GradcheckError as GradcheckError
from flambeau.autograd.variable import Variable as Variable
from flambeau.autograd import anomaly_mode as anomaly_mode
from flambeau.autograd.anomaly_mode import detect_anomaly as detect_anomaly
from flambeau.autograd.grad_mode import enable_grad as enable_grad
from flambeau.autograd.grad_mode import enforce_grad_layout_policy as enforce_grad_layout_policy
from flambeau.autograd import forward_ad as forward_ad
from flambeau.autograd import function as function
from flambeau.autograd import functional as functional
from flambeau.autograd import grad_mode as grad_mode
from flambeau.autograd.gradcheck import gradcheck as gradcheck
from flambeau.autograd.gradcheck import gradgradcheck as gradgradcheck
from flambeau.autograd import graph as graph
from flambeau.autograd.grad_mode import inference_mode as inference_mode
from flambeau.autograd.anomaly_mode import is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled
from flambeau.autograd.anomaly_mode import is_anomaly_enabled as is_anomaly_enabled
from flambeau.autograd.grad_mode import is_grad_enabled as is_grad_enabled
from flambeau.autograd.grad_mode import is_inference_mode_enabled as is_inference_mode_enabled
from flambeau.autograd.grad_mode import no_grad as no_grad
from flambeau.autograd.function import once_differentiable as once_differentiable
from flambeau.autograd import profiler as profiler
from flambeau.autograd import profiler_events as profiler_events
from flambeau.autograd import profiler_list as profiler_list
from flambeau.autograd import profiler_memory as profiler_memory
from flambeau.autograd import profiler_recorder as profiler_recorder
from flambeau.autograd import profiler_table as profiler_table
from flambeau.autograd import profiler_trace as profiler_trace
from flambeau.autograd import profiler_work as profiler_work
from flambeau.tensor.functions.gradients import run_backward as run_backward
from flambeau.tensor.functions.gradients import run_grad as run_grad
from flambeau.autograd.anomaly_mode import set_detect_anomaly as set_detect_anomaly
from flambeau.autograd.grad_mode import set_grad_enabled as set_grad_enabled
from flambeau.autograd.grad_mode import set_multithreading_enabled as set_multithreading_enabled
from flambeau.tensor.functions.joining import stack as stack
from flambeau.autograd import variable as variable

