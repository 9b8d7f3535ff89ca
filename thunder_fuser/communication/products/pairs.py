# SPDX-License-Identifier: Apache-2.0
"""Which call replaces a matrix product and its collective: the same for traces and for fusions.

    all_gather(x) @ w           ->  all_gather_matmul(x, w)
    linear(x, all_gather(w))    ->  all_gather_linear(x, w)
    reduce_scatter(x @ w)       ->  matmul_reduce_scatter(x, w)
    all_reduce(x @ w)           ->  matmul_all_reduce(x, w)

The caller (host/programs/overlap.py, executors/overlap/find.py) shows its ops as products and
collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from thunder_fuser.ir.dtypes import DataType

_DTYPES = (DataType.Half, DataType.BFloat16, DataType.Float, DataType.Double)
REDUCED = {"reduce_scatter": "matmul_reduce_scatter", "all_reduce": "matmul_all_reduce"}


class MatrixProduct(NamedTuple):
    """A matmul, or a linear, whose second operand is transposed and may be followed by a bias.

    sizes, dtypes: of the operands, then of the result.
    """

    op: Any
    is_linear: bool
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DataType | None, ...]

    @property
    def is_supported(self) -> bool:
        """True for floats [.., m, k], a matrix, and a bias with an element for each column."""
        left, right, *biases, result = self.sizes
        fits = len(left) >= 2 == len(right) and all(bias == result[-1:] for bias in biases)
        has_elements = all(0 not in sizes for sizes in self.sizes)
        return fits and has_elements and all(dtype in _DTYPES for dtype in self.dtypes)


class SumOverDevices(NamedTuple):
    """A sum behind a product. kind: all_reduce or reduce_scatter; call: what the caller needs."""

    kind: str
    devices: int
    call: Any


class ProductPair(NamedTuple):
    """The call of this name. collective: what the caller needs of it; place: of the operand that is
    gathered, None for a sum."""

    name: str
    product: MatrixProduct
    collective: Any
    place: int | None = None

    @property
    def transposed(self) -> bool:
        """True if the second operand is a weight [n, k], which the call takes transposed."""
        return self.product.is_linear and self.name != "all_gather_linear"


def pairs_of(
    product: MatrixProduct, gather_of: Callable[[MatrixProduct, int], Any],
    reduction_of: Callable[[MatrixProduct], SumOverDevices | None],
) -> Iterator[ProductPair]:  # fmt: skip
    """The calls with the gather of an operand, then that with the sum of the result over devices.

    gather_of: what the caller needs of the gather, or None; reduction_of: the sum of
    the result, or None. Leading axes count as rows of a matrix: both are along the first axis.
    """
    if not product.is_supported:
        return
    result = product.sizes[-1]
    names = ["all_gather_matmul", "all_gather_linear"]
    for place, name in enumerate(names[:1 + (product.is_linear and len(result) == 2)]):
        gather = gather_of(product, place)
        if gather is not None:
            yield ProductPair(name, product, gather, place)
    post, has_bias = reduction_of(product), len(product.sizes) > 3  # each device would add it
    if post is not None and not has_bias and prod(result[:-1]) % post.devices == 0:
        yield ProductPair(REDUCED[post.kind], product, post.call)
