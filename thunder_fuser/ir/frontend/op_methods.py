# SPDX-License-Identifier: Apache-2.0
"""The op table -> a class with one method a row; op_methods.pyi, made from the same rows, types it.

`help(fd.ops.add)` and `inspect.signature(fd.ops.add)` show the row. CONTRIBUTING.md says how to
make the stub anew.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import Any

from thunder_fuser.ir.frontend.op_docs import docstring, signature
from thunder_fuser.ir.op_schema import Op
from thunder_fuser.ir.op_table import OPS


class OpMethods:
    """One method for each row of the op table, which calls `_call` of a subclass."""


def _method(row: Op) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._call(row, args, kwargs)

    call = signature(row)
    itself = Parameter("self", Parameter.POSITIONAL_ONLY)
    method.__name__, method.__qualname__ = row.name, f"{OpMethods.__name__}.{row.name}"
    method.__doc__ = docstring(row)
    method.__signature__ = call.replace(parameters=[itself, *call.parameters.values()])
    return method


for _row in OPS.values():
    setattr(OpMethods, _row.name, _method(_row))
