"""`torch.fx`: listings, generated code, results and errors equal PyTorch's, program by program and at random."""

from __future__ import annotations

import copy
import inspect
import math
import operator
import pickle
import random
import re
import typing
import warnings
from typing import Any

import pytest
from support import torch

import flambeau

if torch is not None:
    import torch.fx
    import torch.fx.passes.shape_prop
    import torch.fx.passes.split_module
import flambeau.fx
import flambeau.fx.experimental.optimization
import flambeau.fx.passes.shape_prop
import flambeau.fx.passes.split_module

BOTH = (torch, flambeau)


def read(m: Any, root: Any, **options: Any) -> str:
    """Return all text of a trace, or its error."""
    try:
        module = m.fx.symbolic_trace(root, **options)
        return f"{module.graph}\n{module.code}\n{module.print_readable(print_output=False)}"
    except Exception as error:
        return re.sub(r"key>.\d+", "key>", f"{type(error).__name__}: {error}")


def make_net(m: Any) -> Any:
    class Inner(m.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = m.nn.Parameter(m.ones(4))
            self.layers = m.nn.ModuleList([m.nn.Linear(4, 4) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x * self.weight

    class Net(m.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.body = m.nn.Sequential(m.nn.ReLU(), m.nn.Linear(4, 3), m.nn.Dropout(0.1))
            self.register_buffer("scale", m.full((3,), 2.0))
            self.constant = m.ones(3)

        def forward(self, x: Any, y: Any = 3, *, z: Any = None) -> Any:
            t = self.body(self.inner(x)) + self.scale
            t += self.constant
            width, rows = x.shape[0], x.size(1)
            return {
                "a": t.view(-1, width),
                "b": [m.relu(t), m.cat([t, t], dim=1)],
                "c": (t.sum(dim=-1), y, rows),
            }

    return Net()


def initialize(m: Any, net: Any) -> Any:
    with m.no_grad():
        for at, param in enumerate(net.parameters()):
            param.copy_((m.arange(param.numel()) * 0.37 + at).sin().view(param.shape))
    return net.eval()


SOURCES = [
    "def f(x): return m.relu(x) + 1",
    "def f(x, y: int = 2, *args, **kwargs): return x * y + args[0] - kwargs['a']",
    "def f(x): return -x, +x, ~x, abs(x), x // 2, x % 3, 2 ** x, 3 - x, 1.5 / x, x @ x, x << 1, x >> 1, x & x, x | 1",
    "def f(x): return x > 2, x == 3, x != x, 2 <= x, x < 1, x ^ 1",
    "def f(x): return x[0, 1:, None, ...], x[::2], x[[1, 2]], x[x], x[-1]",
    "def f(x): return m.add(x, 1, alpha=2).relu_().transpose(0, 1).T",
    "def f(x):\n  a, b = x\n  return a + b",
    "def f(x):\n  a, (b, c) = x\n  return a + b - c",
    "def f(x): return x.a.b(1).c",
    "def f(x): return F.gelu(x), F.softmax(x, -1), F.max_pool2d(x, 2), F.conv2d(x, x), F.dropout(x, 0.1), F.pad(x, (1, 1))",
    "def f(x): return F.sigmoid(x), F.silu(x), F.layer_norm(x, (3,)), F.interpolate(x, scale_factor=2), F.linear(x, x)",
    "def f(x): return m.split(x, 2)[0], m.einsum('ab,bc', x, x), m.norm(x), m.stack((x, x)), m.special.expit(x)",
    "def f(x): return m.fft.fft(x), m.linalg.norm(x), m.where(x > 0, x, 1), m.max(x, dim=1), x.max(1).values",
    "def f(x): return m.zeros(x.shape[0], dtype=m.float32, device=m.device('cpu')) + float('inf') - float('nan')",
    "def f(x): return math.sqrt(x), math.floor(2.5)",
    "def f(): return m.ones(3)",
    "def f(x): return m.ones(3) + m.zeros(3) * x",
    "def f(x): return None",
    "def f(x, *, k=1, **kw): return x + k",
    "def f(*xs): return xs[0]",
    "def f(input, self, print, len_1, float): return input + self + print + len_1 + float",
    "def f(x: typing.List[int], y: typing.Optional[int] = None) -> typing.Tuple[int, str]: return x[0]",
    "def f(x: list[int], y: int | None = 3, z: 'text' = 1, w: typing.Any = 2) -> int: return x[0]",
    "def f(x): return x.to('cpu'), x.new_zeros(2), x.is_cuda, x.dtype, [i for i in range(3)], slice(x, 1, None)",
    "def f(x): return operator.iadd(x, 1), operator.getitem(x, 0), getattr(x, 'y'), operator.concat(x, x)",
    "def f(x):\n  m._assert(x.sum() > 0, 'message')\n  return x.add_(1)",
    "def f(x): return f'{x}', {'a': x, 'b': (x, [x])}, 1 + 2j, 'te\"xt', m.Size([1, 2]), m.strided, ...",
    "def f(x):\n  with m.no_grad(): return x + 1",
    # errors
    "def f(x):\n  if x.sum() > 0: return x\n  return -x",
    "def f(x):\n  for i in x: pass",
    "def f(x): return len(x)",
    "def f(x): return [*x]",
    "def f(x): return g(*x)",
    "def f(x): return bool(x)",
    "def f(x): return x and 1",
    "def f(x): return 3 in x",
    "def f(x): return {x: 1}",
    "def f(x): return {1, 2}",
    "def f(x): return type(x)",
    "def f(x):\n  x[0] = 1\n  return x",
    "def f(x): return range(x)",
    "def f(x): return divmod(x, 2)",
    "def f(x): raise KeyError('in body')",
]


def build(m: Any, source: str) -> Any:
    space = {
        "m": m,
        "F": m.nn.functional,
        "math": math,
        "operator": operator,
        "typing": typing,
        "__name__": __name__,
    }
    exec(source, space)
    return space["f"]


@pytest.mark.parametrize("source", SOURCES)
def test_traces_of_functions_equal_pytorch(source: str) -> None:
    expected, found = (read(m, build(m, source)) for m in BOTH)
    assert found.replace("flambeau.", "torch.") == expected


def test_traces_of_modules_equal_pytorch() -> None:
    expected, found = (read(m, make_net(m)) for m in BOTH)
    assert found == expected
    assert "seq" not in expected
    assert "linear" not in expected  # modules of torch.nn are leaves


@pytest.mark.parametrize(
    ("names", "options"),
    [
        ("flag", {"flag": False}),
        ("flag", {"flag": None}),
        ("flag", {"flag": "text"}),
        ("d", {"d": {"a": "PH", "b": ["PH", 5]}}),
    ],
)
def test_concrete_args_equal_pytorch(names: str, options: dict[str, Any]) -> None:
    def trace(m: Any) -> str:
        def fill(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: fill(v) for k, v in value.items()}
            if isinstance(value, list):
                return [fill(v) for v in value]
            return m.fx.PH if value == "PH" else value

        body = "if flag: return x\n  return [x]" if names == "flag" else "return x + d['a'] + d['b'][0]"
        return read(m, build(m, f"def f(x, {names}):\n  {body}"), concrete_args=fill(options))

    expected, found = map(trace, BOTH)
    assert found == expected


def test_nested_arguments_flatten_at_calls() -> None:
    for m in BOTH:
        function = build(m, "def f(x, d): return {'r': x + d['a'] + d['b'][0]}")
        module = m.fx.symbolic_trace(function, concrete_args={"d": {"a": m.fx.PH, "b": [m.fx.PH, 5]}})
        assert module(1, {"a": 2, "b": [3, 5]}) == {"r": 6}
        with pytest.raises(AssertionError, match="d has been specialized to have value 5"):
            module(1, {"a": 2, "b": [3, 6]})


def test_traced_module_computes_what_the_module_does() -> None:
    results = []
    for m in BOTH:
        net = initialize(m, make_net(m))
        x = m.arange(12.0).view(3, 4) / 7
        module = m.fx.symbolic_trace(net)
        for other in (
            module,
            copy.deepcopy(module),
            m.fx.Interpreter(module).run,
            m.fx.Transformer(module).transform(),
        ):
            found = other(x)
            assert m.equal(found["a"], net(x)["a"])
        results.append([found["a"].tolist(), module.code, list(module.state_dict()), str(module)])
    assert results[0][1:] == results[1][1:]
    assert flambeau.tensor(results[1][0]).sub(flambeau.tensor(results[0][0])).abs().max() < 1e-5


def test_graph_module_survives_pickle() -> None:
    net = initialize(flambeau, flambeau.nn.Sequential(flambeau.nn.Linear(3, 2), flambeau.nn.ReLU()))
    module = flambeau.fx.symbolic_trace(net)
    again = pickle.loads(pickle.dumps(module))
    x = flambeau.ones(1, 3)
    assert (str(again), str(again.graph)) == (str(module), str(module.graph))
    assert flambeau.equal(again(x), net(x))


def draw_program(seed: int) -> str:
    """Return the source of a random function of three arguments."""
    rng = random.Random(seed)
    values = ["x", "y", "z"]
    lines = []
    forms = [
        "{} + {}", "{} * {}", "-{}", "m.relu({})", "F.relu({})", "m.cat([{}, {}], dim=0)", "{}.sum(dim=-1, keepdim=True)",
        "{}[0]", "{}[:, 1:]", "{}.shape[0]", "m.matmul({}, {})", "F.softmax({}, dim=-1)", "{}.view(-1)", "{}.T",
        "F.dropout({}, p=0.2, training=False)", "m.stack(({}, {}))", "{} > {}", "m.where({} > 0, {}, 0.5)",
        "{}.clamp(min=0, max={})", "m.add({}, {}, alpha=2)", "F.linear({}, {})", "{} @ {}", "2 - {}", "{} ** 2",
        "m.max({}, dim=0)[1]", "F.layer_norm({}, (3,))", "{}.size()", "abs({})", "m.arange({}.shape[1])",
        "F.mse_loss({}, {})", "m.split({}, 2)[1]", "{}.float().mean()", "F.conv1d({}, {}, padding=1)",
    ]  # fmt: skip
    for number in range(rng.randint(2, 12)):
        form = rng.choice(forms)
        filled = form.format(*[rng.choice(values) for _ in range(form.count("{}"))])
        name = rng.choice([f"v{number}", "t", "sum_1", "add", "x"])
        lines.append(f"  {name} = {filled}")
        values.append(name)
    result = rng.choice(["{}", "({}, {})", "[{}, 1]", "{{'a': {}, 'b': ({},)}}"])
    lines.append("  return " + result.format(*[rng.choice(values) for _ in range(2)]))
    return "def f(x, y, z=1):\n" + "\n".join(lines)


def test_random_programs_equal_pytorch() -> None:
    for seed in range(150):
        source = draw_program(seed)
        expected, found = (read(m, build(m, source)) for m in BOTH)
        assert found == expected, source


def edit(m: Any, seed: int) -> list[str]:
    """Change a graph at random and return its text after each step."""
    rng = random.Random(seed)
    graph = m.fx.symbolic_trace(build(m, draw_program(seed))).graph
    texts = []
    for _ in range(12):
        nodes = list(graph.nodes)
        node, other = rng.choice(nodes), rng.choice(nodes)
        step = rng.randrange(8)
        try:
            if step == 0:
                with graph.inserting_before(node):
                    graph.call_function(m.neg, (other,), name=rng.choice([None, "wish", "neg"]))
            elif step == 1:
                with graph.inserting_after(node):
                    graph.call_method("relu", (other,), {"k": [other, {"d": node}]})
            elif step == 2:
                texts.append(str(node.replace_all_uses_with(other)))
            elif step == 3:
                graph.erase_node(node)
            elif step == 4:
                node.prepend(other)
            elif step == 5:
                node.args = (other, *node.args[1:])
            elif step == 6:
                texts.append(str(graph.eliminate_dead_code()))
            else:
                graph.lint()
        except (RuntimeError, AssertionError) as error:
            texts.append(f"{type(error).__name__}: {error}" if "side table" not in str(error) else "")
            if "side table" in str(error):
                return texts  # PyTorch's own table is broken after this
        texts.append(str(graph))
        texts.append(str([(n.name, list(n.users), n.all_input_nodes) for n in graph.nodes]))
        texts.append(graph.python_code("self").src)
    return texts


def test_random_edits_of_graphs_equal_pytorch() -> None:
    for seed in range(80):
        expected, found = (edit(m, seed) for m in BOTH)
        assert found == expected, seed


def test_patterns_are_replaced_as_in_pytorch() -> None:
    program = "def f(x, y): return m.relu(x + y).neg() + m.relu(x + 1) + m.relu(m.relu(y + x) + y)"
    pairs = [
        ("def f(a, b): return m.relu(a + b)", "def f(a, b): return m.sigmoid(a - b)"),
        ("def f(a, b): return m.relu(a + b).neg()", "def f(a, b): return a"),
        ("def f(a): return a + 1", "def f(a): return a.add_one()"),
        ("def f(a, b): return a * b", "def f(a, b): return a"),
    ]
    for pattern, replacement in pairs:
        texts = []
        for m in BOTH:
            module = m.fx.symbolic_trace(build(m, program))
            matches = m.fx.replace_pattern(module, build(m, pattern), build(m, replacement))
            texts.append((module.code, str(matches)))
        assert texts[1] == texts[0], pattern


def test_shapes_and_parts_equal_pytorch() -> None:
    texts = []
    for m in BOTH:
        net = initialize(m, m.nn.Sequential(m.nn.Linear(4, 3), m.nn.ReLU(), m.nn.Linear(3, 2), m.nn.Tanh()))
        module = m.fx.symbolic_trace(net)
        m.fx.passes.shape_prop.ShapeProp(module).propagate(m.ones(5, 4))
        shapes = [str(n.meta["tensor_meta"]) for n in module.graph.nodes]
        count = [0]

        def choose(node: Any, count: list[int] = count) -> int:
            count[0] += 1
            return count[0] // 2

        parts = m.fx.passes.split_module.split_module(module, net, choose)
        assert m.equal(parts(m.ones(5, 4)), net(m.ones(5, 4)))
        texts.append((shapes, str(parts), [child.code for child in parts.children()]))
    assert texts[1] == texts[0]


def test_fuse_absorbs_batch_norms() -> None:
    m = flambeau
    net = initialize(m, m.nn.Sequential(m.nn.Conv2d(1, 2, 3), m.nn.BatchNorm2d(2), m.nn.ReLU()))
    fused = flambeau.fx.experimental.optimization.fuse(net)
    x = m.arange(32.0).view(2, 1, 4, 4) / 9
    assert m.allclose(fused(x), net(x), atol=1e-5)
    assert [n.target for n in fused.graph.nodes] == ["input", "0", "2", "output"]


def test_wrapped_functions_are_single_calls() -> None:
    for m in BOTH:
        space: dict[str, Any] = {"fx": m.fx, "__name__": "wrapping"}
        exec(
            "def helper(x, y=1): return x + y if x.shape[0] else y\nfx.wrap('helper')\nfx.wrap('len')\n"
            "def f(x): return helper(x, y=2) + len(x)",
            space,
        )
        module = m.fx.symbolic_trace(space["f"])
        assert 'torch.fx._symbolic_trace.wrap("wrapping_helper")' in module.code
        assert "len_1 = len(x)" in module.code
        assert module(m.ones(4)).tolist() == [7.0] * 4
        with pytest.raises(NotImplementedError, match="wrap must be called at the top level of a module"):
            m.fx.wrap("here")


def test_patches_end_with_the_trace() -> None:
    call = flambeau.nn.Module.__call__
    with pytest.raises(ValueError, match="control flow"):
        flambeau.fx.symbolic_trace(lambda x: 1 if x else 2)
    assert flambeau.nn.Module.__call__ is call
    assert not flambeau.fx._symbolic_trace.is_fx_tracing()


def test_public_functions_are_recorded_in_pytorch_form() -> None:
    """Every function of the public namespaces, called with as many proxies as it has required parameters."""
    known = {
        "set_default_device",
        "typename",
        "from_dlpack",
        "from_file",  # which no object overrides
        "pca_lowrank",
        "svd_lowrank",
        "einsum",
        "lu_solve",
        "spmm",  # `mm` in PyTorch
        "dsmm",
        *("sym_sqrt", "grouped_mm", "scaled_mm", "scaled_grouped_mm"),  # by their private names in PyTorch
        "sym_sum",  # with its argument in a tuple in PyTorch
    }
    assert all(
        hasattr(flambeau, name) for name in ("sym_int", "_check", "hub")
    )  # those that come when asked for
    wrong = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in ("", "nn.functional", "fft", "linalg"):
            spaces = [operator.attrgetter(path)(m) if path else m for m in BOTH]
            for name, function in vars(spaces[1]).items():
                if (
                    name[0] == "_"
                    or name in known
                    or not inspect.isfunction(function)
                    or not hasattr(spaces[0], name)
                ):
                    continue
                if not function.__module__.startswith("flambeau") or name.startswith(("set_", "use_")):
                    continue
                parameters = inspect.signature(function).parameters.values()
                kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                count = sum(p.default is p.empty and p.kind in kinds for p in parameters)
                names = ", ".join(f"x{n}" for n in range(max(count, 1)))
                texts = []
                for m, space in zip(BOTH, spaces, strict=True):
                    scope = {"function": getattr(space, name)}
                    exec(f"def f({names}): return function({names})", scope)
                    texts.append(read(m, scope["f"]))
                if texts[0] != texts[1] and "Error: " not in texts[0]:
                    wrong[path, name] = texts[1]
    assert wrong == {}
