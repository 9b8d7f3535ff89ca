# SPDX-License-Identifier: Apache-2.0
"""Checks of results that have another shape or overwrite an argument."""

from __future__ import annotations

from collections.abc import Container
from math import prod

from thunder_fuser.errors import AliasError, DefinitionError
from thunder_fuser.ir import shapes
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.record import OpRecord


def check_shape(view: TensorView, record: OpRecord, *, is_input: bool) -> None:
    """A result in another shape is a view: it must be computed here, in row-major order."""
    shape: tuple[int, ...] = record.attr("shape")  # type: ignore[assignment]
    if len(record.attrs) > 1 or is_input or not view.domain.is_row_major:
        raise DefinitionError(
            f"output {view.name}",
            expected="a computed row-major value, no stride order, no alias",
            got=f"shape={list(shape)} of {view}",
            do="reshape the result before add_output",
        )
    extents = [extent.value for extent in view.shape if extent.is_const]
    if len(extents) != len(view.shape) or prod(extents) != prod(shape):
        raise DefinitionError(
            f"output {view.name}", expected=f"as many elements as {view}", got=str(list(shape))
        )


def check_alias(
    view: TensorView, target: TensorView, inputs: Container[str], written: Container[str]
) -> None:
    """At most one result overwrites an input tensor, with the same type and sizes."""
    if target.name in written:
        raise AliasError(
            f"output {view.name}",
            expected="one output for each aliased input",
            got=f"a second one into {target.name}",
        )
    if target.name not in inputs:
        raise AliasError(f"output {view.name}", expected="an input to alias", got=target.name)
    if view.dtype is not target.dtype or not shapes.may_be_equal(view.shape, target.shape):
        raise AliasError(
            f"output {view.name}",
            expected=f"the dtype and sizes of {target}",
            got=str(view),
            do="cast or reshape the result before add_output",
        )
