"""An operator is one block: outside of its record no list of operators exists, by which one would be told apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import flambeau
from flambeau.ops.op import Op, table
from flambeau.testing import operator_properties  # noqa: F401 (it loads all records)

PACKAGE = Path(flambeau.__file__).parent
NAMES = set(table) | {name.partition(".")[0] for name in table}
FEW = 3  # a list names so many operators

# Files that define, export or state the name: of `max_pool2d`, and of ten operators that were drawn at random.
FILES_OF = {
    "max_pool2d": 2,
    "digamma": 6,
    "log_sigmoid": 4,
    "special_bessel_j1": 1,
    "rsqrt": 2,
    "interpolate": 7,
    "masked_select": 6,
    "var_mean": 5,
    "hardshrink": 5,
    "special_shifted_chebyshev_polynomial_v": 1,
    "masked_scatter": 5,
}

# Words of PyTorch's public `reduce=`, `op=` and `mode=` arguments. They happen to be names of operators, too.
ARGUMENT_VALUES = {"sum", "add", "prod", "mean", "min", "max", "amin", "amax", "std", "var", "complex"}
ALLOWED = {
    "__init__.py": "names that are imported at their first use",
    "tensor/arguments/arg_errors.py": "functions whose integers PyTorch converts otherwise, by their public names",
    "driver/host/kernels/native/kernel_names.py": "functions of prelude.cuh, by how compilers vectorize them",
    "cli/calibration/microbenchmarks.py": "the calls that are measured",
    "_C/__init__.py": "PyTorch's names of its C++ module, re-exported",
    "_subclasses/fake_tensor.py": "aten's operators whose results have sizes that depend on values",
    "_aten/composed.py": "losses whose node is one of aten's composed ones",
    "_aten/private.py": "aten's private operators, each with the function that computes it",
    "_aten/table.py": "PyTorch's own list of aten operators that take numbers for tensors",
    "_aten/translations.py": "calls of aten, by which TorchDispatchMode sees a record; aten lies above ops",
    "autograd/profiler_recorder.py": "names of the profiler's rows, which are PyTorch's",
    "driver/cuda/index/order_statistics.py": "C++ of kernels that share a builder, by kind of rank",
    "fx/codegen.py": "Python's operators, by the names of the module `operator`",
    "fx/proxy.py": "Python's operators, by the names of the module `operator`",
    "fx/qualified_names.py": "PyTorch's modules of functions, which generated code names",
    "masked.py": "public names of torch.masked",
    "observe/reporting/operator_names.py": "Python's augmented assignments, each with the method that it calls",
    "ops/pointwise/expression_cpp.py": "the C++ functions that jiterator's language has",
    "sparse/__init__.py": "public names of torch.sparse",
    "tensor/arguments/torch_function.py": "dunders, each with the method that __torch_function__ receives",
    "testing/operator_properties.py": "operators without samples, each with the reason, which generated tests require",
    "testing/soundness/graph_steps.py": "steps of random programs, which only some operators can be",
}
"""Files that name operators together, and why that is not a second list."""


RECORDS_ALLOWED = {
    "ops/pointwise/expression.py": "operators of truth values, which expressions compute with in place of bits",
    "ops/pointwise/expression_cpp.py": "C++'s operators and functions, by their names in jiterator's language",
    "ops/pointwise/expression_text.py": "Python's operators and NumPy's functions, by their names in expressions",
    "tensor/fusion/divided_calls.py": "operators that groups compute in parts, each with the function that divides it",
    "tensor/sparse/elementwise.py": "sums and quotients, each group with the function that computes them",
}
"""Files that list the records themselves, and why that is not a second list."""


def strings_of(node: ast.expr) -> Iterator[str]:
    """The strings of a display, and of those inside."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Dict):
        for part in [*node.keys, *node.values]:
            if part is not None:
                yield from strings_of(part)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for part in node.elts:
            yield from strings_of(part)


def lists_of(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """Displays, and texts of words only, that name several operators: line and names."""
    text = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    text |= {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            words = set(strings_of(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in text:
            words = set(node.value.split())
            words = words if all(word.isidentifier() for word in words) else set()
        else:
            continue
        named = {word for word in words if word.removesuffix("_") in NAMES} - ARGUMENT_VALUES
        if len(named) >= FEW:
            yield node.lineno, named


def found_lists() -> dict[str, list[tuple[int, set[str]]]]:
    lists = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found = list(lists_of(ast.parse(path.read_text())))
        if found:
            lists[path.relative_to(PACKAGE).as_posix()] = found
    return lists


def test_operators_are_listed_nowhere_outside_of_their_records() -> None:
    lists = found_lists()
    second = {file: found for file, found in lists.items() if file not in ALLOWED}
    assert second == {}, "put what a list says into the operators' records: docs/add-an-operator.md"
    assert sorted(ALLOWED) == sorted(file for file in lists if file in ALLOWED), "a file lists none any more"


def words_written(path: Path) -> Iterator[str]:
    """The names that a file defines, exports or has in a string; calls, imports and docstrings do not count."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias) and path.name == "__init__.py":
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from re.findall(r"\w+", node.value)


def value_of(node: ast.AST | None, names: dict[str, Any]) -> Any:
    """Return the value of a name or of an attribute of a module; None for other expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    return getattr(value_of(node.value, names), node.attr, None) if isinstance(node, ast.Attribute) else None


def record_lists_of(tree: ast.Module, names: dict[str, Any]) -> Iterator[tuple[int, set[str]]]:
    """Displays that name several records by variables: line and operators."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            parts: list[Any] = node.elts
        elif isinstance(node, ast.Dict):
            parts = [*node.keys, *node.values]
        else:
            continue
        parts += [x for part in parts if isinstance(part, ast.List | ast.Tuple) for x in part.elts]
        values = [value_of(x, names) for x in parts if not isinstance(getattr(x, "ctx", None), ast.Store)]
        named = {value.name for value in values if isinstance(value, Op)}
        if len(named) >= FEW:
            yield node.lineno, named


def test_records_are_listed_nowhere_outside_of_their_definitions() -> None:
    lists = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text, relative = path.read_text(), path.relative_to(PACKAGE).as_posix()
        if "flambeau.ops" in text or relative.startswith("ops/"):  # others have no record in a variable
            name = ".".join(["flambeau", *path.relative_to(PACKAGE).with_suffix("").parts])
            module = import_module(name.removesuffix(".__init__"))
            if found := list(record_lists_of(ast.parse(text), vars(module))):
                lists[relative] = found
    second = {file: found for file, found in lists.items() if file not in RECORDS_ALLOWED}
    assert second == {}, "put what a list says into the operators' records: docs/add-an-operator.md"
    assert sorted(RECORDS_ALLOWED) == sorted(lists), "a file lists none any more"


def test_an_operator_is_written_in_few_files() -> None:
    files: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for word in words_written(path):
            files.setdefault(word.removesuffix("_"), set()).add(path.relative_to(PACKAGE).as_posix())
    written = {name: files.get(name, set()) for name in FILES_OF}
    more = {name: sorted(found) for name, found in written.items() if len(found) > FILES_OF[name]}
    assert more == {}, "put what a new place says into the operator's block: docs/add-an-operator.md"


def test_the_page_quotes_the_source() -> None:
    """Blocks of docs/add-an-operator.md that do not run (tests/examples runs the others) stand in the tree."""
    page = (Path(__file__).parents[2] / "docs" / "add-an-operator.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    quoted = [block for block in blocks if not block.startswith("import flambeau")]
    sources = [
        path.read_text() for folder in ("ops", "tensor") for path in PACKAGE.joinpath(folder).rglob("*.py")
    ]
    assert len(quoted) == 3
    assert [block for block in quoted if not any(block in source for source in sources)] == []


def test_a_second_list_is_found() -> None:
    for text in (
        'X = {"exp", "log", "sin"}',
        'X = "exp log sin".split()',
        'X = {"exp": 1, "log_": 2, "sin": 3}',
    ):
        assert [names for _, names in lists_of(ast.parse(text))], text
    records = {"a": table["exp"], "b": table["log"], "ops": type("Module", (), {"c": table["sin"]})}
    for text in ("x = {a, b, ops.c}", "x = [(a, 1), (b, 2), (ops.c, 3)]", "for x in (a, b, ops.c): pass"):
        assert [names for _, names in record_lists_of(ast.parse(text), records)] == [{"exp", "log", "sin"}]
    assert list(record_lists_of(ast.parse("a, b, ops.c = f(a), f(b), f(ops.c)"), records)) == []
    assert list(lists_of(ast.parse('"""exp log sin"""\nX = ["exp", "log", "sum", "mean"]'))) == []
