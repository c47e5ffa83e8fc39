"""Running a list of passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.public_names import explain_absent_names, publish
from flambeau.fx.passes.infra.pass_base import PassResult
from flambeau.nn.modules.module import Module

__all__ = ["PassManager"]


class PassManager:
    """A sequence of passes that runs repeatedly until no pass changes the module.

    Args:
        passes: Functions of a module that return a PassResult or None.
        constraints: Functions of two passes that return False if the second must not run after the first.
        steps: Upper limit of repetitions.
        run_checks_after_each_pass: Call `check` after each pass.
        suppress_check_failures: Do not call `check` at the end.
    """

    def __init__(
        self,
        passes: list[Callable[[Module], PassResult | None]] | None = None,
        constraints: list[Callable[..., bool]] | None = None,
        steps: int | None = None,
        run_checks_after_each_pass: bool = False,
        suppress_check_failures: bool = False,
    ) -> None:
        self.passes = passes or []
        self.constraints = constraints or []
        self.steps = steps or 1
        self.run_checks_after_each_pass = run_checks_after_each_pass
        self.suppress_check_failures = suppress_check_failures

    def add_pass(self, _pass: Callable[..., Any]) -> None:
        """Append a pass."""
        self.passes.append(_pass)

    def add_constraint(self, constraint: Callable[..., bool]) -> None:
        """Append a constraint on the order."""
        self.constraints.append(constraint)

    def add_checks(self, check: Callable[..., Any]) -> None:
        """Let `check` be called with the module."""
        self.check = check  # type: ignore[method-assign]

    def check(self, module: Module) -> None:
        """Raise an error if the module is invalid."""
        return

    def validate_constraints(self) -> None:
        """Check the order of the passes.

        Raises:
            RuntimeError: If it violates a constraint.
        """
        for constraint in self.constraints:
            for at, first in enumerate(self.passes):
                for second in self.passes[at + 1 :]:
                    if not constraint(first, second):
                        raise RuntimeError(
                            f"pass schedule constraint violated. Expected {first} before {second} but found {second} "
                            "before it in pass list. Reorder the passes."
                        )

    def __call__(self, module: Module) -> PassResult:
        self.validate_constraints()
        is_changed_at_all = False
        for _ in range(self.steps):
            is_changed = False
            for each in self.passes:
                result = each(module)
                if not isinstance(result, PassResult):
                    raise TypeError(
                        f"The result of the pass {getattr(each, '__name__', each)} should be type PassResult. Please "
                        "wrap it with pass_result_wrapper()"
                    )
                module, is_changed = result.graph_module, is_changed or result.modified
                if self.run_checks_after_each_pass:
                    self.check(module)
            is_changed_at_all |= is_changed
            if not is_changed:
                break
        if not self.suppress_check_failures:
            self.check(module)
        return PassResult(module, is_changed_at_all)  # type: ignore[arg-type]


publish(globals())


explain_absent_names(globals(), "torch.fx.passes.infra.pass_manager")
