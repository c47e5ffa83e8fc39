"""`torch.compile` and its neighbours: one program, run by PyTorch's CPU build (stance `force_eager`) and by Flambeau."""

from __future__ import annotations

from pathlib import Path

import pytest
from both import run_both

import flambeau as torch

PROGRAM = """
import copy, functools, inspect, operator, pickle, warnings
warnings.simplefilter("ignore")
import torch, torch._dynamo, torch._inductor, torch._inductor.config, torch.compiler
import torch._dynamo.config as dynamo_config
from torch._dynamo.eval_frame import OptimizedModule
from torch import nn

torch.compiler.set_stance("force_eager")
torch.manual_seed(0)


def show(label, run):
    try:
        result = run()
    except Exception as error:
        text = str(error)
        print(label, type(error).__name__, text if isinstance(error, (RuntimeError, AssertionError, ValueError)) else "")
    else:
        print(label, result)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.count = nn.Linear(3, 2), 0
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x, scale=1):
        self.count += 1
        return self.linear(x) * scale

    def double(self, x):
        return 2 * self.linear(x)


class Other(nn.Module):
    def forward(self, x):
        return x + 1


def add(a, b=1):
    "Add."
    return a + b


x = torch.arange(3.0)

# functions
for label, made in {
    "plain": torch.compile(add), "decorator": torch.compile()(add), "options": torch.compile(options={"max_autotune": True})(add),
    "mode": torch.compile(add, mode="reduce-overhead", dynamic=True), "full": torch.compile(add, fullgraph=True, backend="eager"),
    "backend": torch.compile(add, backend=lambda gm, inputs: gm), "off": torch.compile(add, disable=True),
}.items():
    show(label, lambda: [made(x).tolist(), made(x, b=3).tolist(), made.__name__, made.__doc__, made is add])
show("marks", lambda: [torch.compile(add)._torchdynamo_orig_callable is add, torch.compile(add).__wrapped__ is add])
show("twice", lambda: torch.compile(torch.compile(add))._torchdynamo_orig_callable is add)
show("innermost", lambda: torch._dynamo.eval_frame.innermost_fn(torch.compile(add)) is add)
show("config", lambda: [torch.compile(add, mode="max-autotune").get_compiler_config()[k] for k in ("max_autotune", "triton.cudagraphs", "cpp.threads")])
show("config", lambda: torch.compile(add, options={"epilogue_fusion": False}).get_compiler_config()["epilogue_fusion"])
show("config", lambda: torch.compile(add, backend="eager").get_compiler_config())
show("callable", lambda: torch.compile(functools.partial(add, b=4))(x).tolist())
show("class", lambda: [torch.compile(Other) is Other, Other()(x).tolist()])
show("signature", lambda: [p for p in inspect.signature(torch.compile).parameters])
show("module", lambda: torch.compile.__name__)

# arguments
show("both", lambda: torch.compile(add, mode="default", options={}))
show("mode", lambda: torch.compile(add, mode="fast"))
show("option type", lambda: torch.compile(add, options={"max_autotune": 1}))
show("option type", lambda: torch.compile(add, options={"cpp.threads": "2"}))
show("backend", lambda: torch.compile(add, backend="none"))
show("not callable", lambda: torch.compile(3))
show("not callable", lambda: torch.compile(3, disable=True))
show("no model", lambda: torch.compile()(None))
show("dynamic", lambda: torch.compile(add, dynamic=1))
try:
    torch.compile(add, options={"no_such": 1})
except RuntimeError as error:
    print(str(error)[:60])
show("positional", lambda: torch.compile(add, True))
show("backends", lambda: [torch.compiler.list_backends(), torch._dynamo.list_backends(None), torch._dynamo.list_backends(("debug",))])
show("modes", torch._inductor.list_mode_options)
show("options", lambda: [len(torch._inductor.list_options()) > 500, "triton.cudagraphs" in torch._inductor.list_options()])

# modules
net = Net()
made = torch.compile(net)
show("type", lambda: [isinstance(made, OptimizedModule), isinstance(made, nn.Module), isinstance(made, Net), type(made).__name__])
show("repr", lambda: made)
show("keys", lambda: [list(made.state_dict()), [n for n, _ in made.named_parameters()], [n for n, _ in made.named_modules()]])
show("call", lambda: [made(x).tolist() == net(x).tolist(), made.count, net.count, made(x, scale=2).tolist() == (2 * net(x)).tolist()])
show("forwarded", lambda: [made.double(x).tolist() == net.double(x).tolist(), made.linear is net.linear, hasattr(made, "other")])
made.other = 3
show("assigned", lambda: [net.other, made.other, "other" in dir(made)])
del made.other
show("deleted", lambda: hasattr(net, "other"))
show("missing", lambda: made.nothing)
show("modes", lambda: [made.eval().training, net.training, made.train().training, net.training])
show("original", lambda: [made._orig_mod is net, made._torchdynamo_orig_callable == net.forward])
show("load", lambda: made.load_state_dict({"_orig_mod." + k: v for k, v in Net().state_dict().items()}))
show("load strictly", lambda: made.load_state_dict(Net().state_dict()))
other = copy.deepcopy(made)
show("copied", lambda: [type(other).__name__, other._orig_mod is net, other(x).tolist() == made(x).tolist(), other.linear.weight is net.linear.weight])
show("twice", lambda: [type(torch.compile(made)).__name__, torch.compile(made)._orig_mod is net])
show("len", lambda: [len(torch.compile(nn.Sequential(nn.ReLU(), nn.Tanh()))), len(torch.compile(nn.ReLU()))])
handle = made.register_forward_hook(lambda m, i, o: o + 100)
show("hook", lambda: made(x).sum().item() > 100)
handle.remove()
show("bound", lambda: torch.compile(net.double)(x).tolist() == net.double(x).tolist())
made(x).sum().backward()
show("grads", lambda: [net.linear.bias.grad.tolist(), made._orig_mod.linear.bias.grad is net.linear.bias.grad])
show("compile", lambda: [net.compile(), net(x).shape, list(net.state_dict()), net._compiled_call_impl is not None])
show("compile copied", lambda: copy.deepcopy(net)._compiled_call_impl)
show("compile wrongly", lambda: net.compile(backend="none"))
show("to", lambda: [made.to(torch.float64) is made, net.linear.weight.dtype, sum(p.numel() for p in made.parameters())])
show("lazy", lambda: torch.compile(nn.LazyLinear(2))(x).shape)
hook = nn.modules.module.register_module_forward_hook(lambda m, i, o: None)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.compile(nn.ReLU())(x)
print("global hooks", [str(w.message) for w in caught])
hook.remove()


class Method(nn.Module):
    @torch.compile(mode="max-autotune")
    def forward(self, x):
        return x + 1

    @torch.compiler.disable
    def other(self, x):
        return x + 2


show("method", lambda: [Method()(x).tolist(), Method().other(x).tolist()])

# torch.compiler
c = torch.compiler
show("states", lambda: [c.is_compiling(), c.is_dynamo_compiling(), c.is_exporting(), torch._dynamo.is_compiling(), torch._dynamo.external_utils.is_compiling()])
show("disable", lambda: [c.disable(add)(x).tolist(), c.disable(recursive=False)(add)(x).tolist(), c.disable()(add).__name__, c.disable(add, reason="r")._torchdynamo_disable_msg])
show("disable", lambda: [torch._dynamo.is_dynamo_disable_recursive(f) for f in (c.disable(add), c.disable(add, recursive=False), add)])
show("disable", lambda: c.disable(3))
show("disable", lambda: [type(c.disable(Net())).__name__, list(c.disable(Net()).state_dict())])
show("allow", lambda: [c.allow_in_graph(add) is add, c.allow_in_graph([add])[0] is add])
show("allow", lambda: c.allow_in_graph(3))
show("constant", lambda: c.assume_constant_result(add) is add)
show("default", lambda: [c.get_default_backend(), c.set_default_backend("eager"), c.get_default_backend(), c.set_default_backend(None), c.get_default_backend()])
show("default", lambda: c.set_default_backend(3))
show("reset", lambda: [c.reset(), torch._dynamo.reset(), c.cudagraph_mark_step_begin()])
show("collectives", lambda: [c.set_enable_guard_collectives(True), c.set_enable_guard_collectives(False), c.set_enable_guard_collectives(False)])
show("numpy", lambda: c.wrap_numpy(lambda a, b: (a + b["k"], {"n": 1, "a": a.sum()}))(x, {"k": x}))
show("numpy", lambda: torch._dynamo.external_utils.wrap_numpy(add)(x))
show("region", lambda: [c.nested_compile_region(add)(x).tolist(), c.nested_compile_region()(add)(x).tolist()])
show("region", lambda: c.nested_compile_region(add, options=1))
show("artifacts", c.save_cache_artifacts)
show("stance", lambda: c.set_stance("force_eager", force_backend="eager"))
with c.set_stance("nonsense"):
    show("stance", lambda: torch.compile(add)(x))


@c.set_stance("force_eager")
def run_eagerly(v):
    return torch.compile(add)(v)


show("stance", lambda: run_eagerly(x).tolist())
show("all", lambda: sorted(c.__all__))
show("compile", lambda: c.compile(add)(x).tolist())


@c.substitute_in_graph(operator.length_hint)
def length_hint(obj, default=0, /):
    return -1


show("substitute", lambda: [length_hint([1, 2]), length_hint.__torch_dynamo_original__ is operator.length_hint])
show("substitute", lambda: c.substitute_in_graph(3))
show("substitute", lambda: c.substitute_in_graph(add)(3))
show("substitute", lambda: c.substitute_in_graph(add)(lambda a: a))

# torch._dynamo
d = torch._dynamo
for name, value in (("suppress_errors", True), ("cache_size_limit", 64), ("recompile_limit", 9)):
    show(name, lambda: [getattr(dynamo_config, name), setattr(dynamo_config, name, value), getattr(torch._dynamo.config, name)])
show("alias", lambda: [dynamo_config.cache_size_limit, dynamo_config.recompile_limit])
show("unknown", lambda: dynamo_config.no_such)
show("unknown", lambda: setattr(dynamo_config, "no_such", 1))
show("inductor", lambda: [torch._inductor.config.triton.cudagraphs, setattr(torch._inductor.config.triton, "cudagraphs", True), torch._inductor.config.triton.cudagraphs])
show("inductor", lambda: [torch._inductor.config.fallback_random, hasattr(torch._inductor.config, "no_such"), hasattr(torch._inductor.config.triton, "no_such")])
with dynamo_config.patch(verbose=True), dynamo_config.patch({"suppress_errors": False}), dynamo_config.patch("capture_scalar_outputs", True):
    show("patch", lambda: [dynamo_config.verbose, dynamo_config.suppress_errors, dynamo_config.capture_scalar_outputs])
show("patch", lambda: [dynamo_config.verbose, dynamo_config.suppress_errors, dynamo_config.capture_scalar_outputs])
show("patch", lambda: dynamo_config.patch(3))
show("patch", lambda: dynamo_config.patch("verbose", True, suppress_errors=True))
show("patch", lambda: d.patch_dynamo_config(cache_size_limit=3))
saved = dynamo_config.save_config()
dynamo_config.verbose = True
show("load", lambda: [dynamo_config.load_config(saved), dynamo_config.verbose, dynamo_config.get_config_copy()["recompile_limit"]])
show("compiler config", lambda: [c.config.force_disable_caches, c.config.job_id, c.config.recompile_limit])

t = torch.ones(2, 3)
d.mark_dynamic(t, 0, min=2, max=9)
d.mark_dynamic(t, [1])
d.maybe_mark_dynamic(t, (0, 1))
d.mark_static(t, 1)
d.mark_static(torch.ones(3))
d.mark_static_address(t)
d.mark_unbacked = d.decorators.mark_unbacked
u = torch.ones(2)
d.mark_unbacked(u, 0, min=1)
show("marks", lambda: [t._dynamo_dynamic_indices, t._dynamo_weak_dynamic_indices, t._dynamo_static_indices, t._dynamo_static_input_type, u._dynamo_unbacked_indices])
show("ranges", lambda: sorted((r.dim, r.min or 0, r.max or 0) for r in t._dynamo_dynamic_range))
show("marks", lambda: d.mark_dynamic(t, "0"))
show("marks", lambda: d.mark_static_address(3))
show("marks", lambda: d.mark_static(3, 0))
show("marks", lambda: [d.mark_static(Net) is Net, Net._dynamo_marked_static])
show("breaks", lambda: [d.graph_break(), d.graph_break(msg="x"), d.skip_frame(), d.disallow_in_graph(torch.add) is torch.add])
show("optimize", lambda: [d.optimize("eager")(add)(x).tolist(), d.optimize()(add)(x).tolist(), d.optimize("eager", nopython=True)(add)(x).tolist(), d.optimize(disable=True)(add) is add])
show("optimize", lambda: d.optimize("none"))
show("context", lambda: d.optimize("eager").__enter__())
show("run", lambda: d.run(add)(x).tolist())
show("exceptions", lambda: [[b.__name__ for b in getattr(d.exc, n).__mro__] for n in ("Unsupported", "InvalidBackend", "TorchRuntimeError", "UserError", "BackendCompilerFailed", "InternalTorchDynamoError")])
show("registered", lambda: d.register_backend(lambda gm, i: gm, name="mine") and "mine" in d.list_backends())
show("registered", lambda: torch.compile(add, backend="mine")(x).tolist())
show("registered", lambda: d.register_backend(lambda gm, i: gm, name="mine"))
show("looked up", lambda: d.lookup_backend("none"))
show("counters", lambda: [type(d.utils.counters).__name__, d.utils.counters["frames"]["ok"]])
show("names", lambda: [n for n in ("OptimizedModule", "_TorchDynamoContext", "innermost_fn") if not hasattr(d.eval_frame, n)])
"""


def test_compile_agrees_with_pytorch_under_force_eager(tmp_path: Path) -> None:
    run_both(tmp_path, PROGRAM, 120)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: torch._dynamo.export(print), "state_dict"),
        (lambda: torch.compiler.load_cache_artifacts(b""), "run eagerly"),
        (lambda: torch.compiler.load_compiled_function(None), "Call the Python function"),
    ],
)
def test_what_needs_captured_graphs_raises(call, advice: str) -> None:
    with pytest.raises(torch.NotSupportedError, match=advice):
        call()
