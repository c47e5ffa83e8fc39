"""Several pointwise operators over the same operands as one operator of several outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.driver.protocol import Body, Expression, Expressions, Kernel, Launch
from flambeau.ops.op import Derivative, Op, Operand, Signature
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.ops.pointwise.pointwise_body import Array


def together(name: str, records: Sequence[Pointwise], derivative: Derivative) -> Op:
    """Return an operator with the outputs of several pointwise operators, which compute in one dtype."""
    first = records[0]

    def rule(operands: Sequence[Operand], given: tuple[Any, ...]) -> Signature:
        signatures = [record.rule(operands, given) for record in records]
        outputs = tuple([signature.outputs[0] for signature in signatures])
        return signatures[0].with_(outputs=outputs)

    def host(launch: Launch) -> Body:
        bodies = [
            record.kernel.host(launch.with_(kernel=record.kernel, outputs=(out,)))
            for record, out in zip(records, launch.outputs, strict=True)
        ]

        def body(outputs: list[Array], inputs: list[Any]) -> None:
            for one, out in zip(bodies, outputs, strict=True):
                one([out], list(inputs))

        return body

    def flops(launch: Launch) -> int:
        return sum([record.kernel.flops(launch) for record in records])

    forms = tuple([record.kernel.cuda for record in records])
    cuda = Expressions(tuple([form for form in forms if isinstance(form, Expression)]))
    kernel = Kernel(name, host, flops, cuda=cuda)
    return Op(
        name,
        rule,
        kernel,
        first.dtypes,
        first.samples,
        casts_output=True,
        flags=first.flags,
        derivative=derivative,
    )
