"""Small modules that packages import: SobolEngine, builds, absent libraries, groups of tensors, names of checkpoints."""

from __future__ import annotations

import pytest
from support import torch

import flambeau


@pytest.mark.parametrize(
    "options",
    [
        {"dimension": 3},
        {"dimension": 2, "scramble": True, "seed": 5},
        {"dimension": 40, "scramble": True, "seed": 1},
    ],
)
def test_sobol_points_are_pytorchs(options: dict[str, int]) -> None:
    ours, theirs = (m.quasirandom.SobolEngine(**options) for m in (flambeau, torch))
    for turn in (1, 0, 6, 9):
        assert ours.draw(turn).tolist() == theirs.draw(turn).tolist()
        ours.fast_forward(turn), theirs.fast_forward(turn)
        assert ours.quasi.tolist() == theirs.quasi.tolist() and ours.num_generated == theirs.num_generated
    assert ours.reset().draw_base2(4).tolist() == theirs.reset().draw_base2(4).tolist()
    assert repr(ours) == repr(theirs)
    assert ours.sobolstate.tolist() == theirs.sobolstate.tolist()


def test_sobol_errors_are_pytorchs() -> None:
    for use in ("(0)", "(21202)", "(2).draw_base2(1).shape", "(2).fast_forward(3).draw_base2(1)"):
        found = []
        for m in (flambeau, torch):
            try:
                found.append(str(eval(f"m.quasirandom.SobolEngine{use}", {"m": m})).replace("torch.", ""))
            except ValueError as error:
                found.append(str(error))
        assert found[0] == found[1], use


def test_the_default_generator_scrambles() -> None:
    found = []
    for m in (flambeau, torch):
        m.manual_seed(4)
        found.append(m.quasirandom.SobolEngine(3, scramble=True).draw(4).tolist())
    assert found[0] == found[1]


def test_absent_libraries_are_not_available() -> None:
    for name in ("mkldnn", "mkl", "openmp", "nnpack", "kleidiai", "opt_einsum", "xnnpack"):
        module = getattr(flambeau.backends, name)
        assert module.is_available() is False
        with pytest.raises(AttributeError, match="Flambeau lacks it"):
            module.verbose  # noqa: B018
    assert flambeau.backends.cpu.get_cpu_capability() == "DEFAULT"
    assert "USE_MKL=OFF" in flambeau.__config__.show() and "threads" in flambeau.__config__.parallel_info()


def test_groups_of_tensors_are_pytorchs() -> None:
    found = []
    for m in (flambeau, torch):
        from importlib import import_module

        group = import_module(f"{m.__name__}.utils._foreach_utils")._group_tensors_by_device_and_dtype
        first = [m.zeros(1), m.zeros(2, dtype=m.int64), m.zeros(3)]
        second = [m.ones(1), None, None]
        groups = group([first, second, []], with_indices=True)
        shown = {
            (str(device), str(dtype).rpartition(".")[2]): (
                [[t if t is None else t.tolist() for t in part] for part in lists],
                indices,
            )
            for (device, dtype), (lists, indices) in groups.items()
        }
        with pytest.raises(RuntimeError):
            group([first, second[:2]])
        with pytest.raises(RuntimeError):
            group([second, first])
        found.append(shown)
    assert found[0] == found[1]


def test_names_of_checkpoints() -> None:
    assert flambeau.serialization.DEFAULT_PROTOCOL == torch.serialization.DEFAULT_PROTOCOL
    assert flambeau.device in flambeau.serialization.MAP_LOCATION.__args__
    assert flambeau._C._log_api_usage_once("used") is None and isinstance(
        flambeau.Tensor, flambeau._C._TensorMeta
    )


def test_split_takes_sizes_by_keyword() -> None:
    for m in (flambeau, torch):
        x = m.arange(6)
        for parts in (
            x.split(split_size=[2, 4]), x.split(split_size=(2, 4), dim=0), m.split(x, split_size_or_sections=[2, 4]),
            m.split(tensor=x, split_size_or_sections=[2, 4]),
        ):  # fmt: skip
            assert [part.tolist() for part in parts] == [[0, 1], [2, 3, 4, 5]]
        assert len(x.split(split_size=4)) == len(m.split(x, split_size_or_sections=4)) == 2
