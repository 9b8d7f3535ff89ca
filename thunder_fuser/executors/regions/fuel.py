# SPDX-License-Identifier: Apache-2.0
"""Fuel: how many fusions may be made, to find the one that is wrong by halving their number.

    claimed: Region 0, linear, Region 1       fuel 1  ->  Region 0, linear, the ops of region 1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thunder.extend import FUEL_LEVEL

from thunder_fuser.errors import OptionError
from thunder_fuser.executors.regions.claim import Claims
from thunder_fuser.executors.regions.region import Item, Region
from thunder_fuser.options import option
from thunder_fuser.trace.op import Reject


class Fuel:
    """How many fusions an executor may still make. Thunder's tests set it."""

    def __init__(self) -> None:
        self._left: int | FUEL_LEVEL = FUEL_LEVEL.UNLIMITED

    def take(self, amount: int) -> bool:
        """Takes fuel for this many fusions; False when it is used up. 0: whether there is any."""
        if isinstance(self._left, FUEL_LEVEL):
            return True
        enough = self._left >= max(amount, 1)
        self._left -= amount * enough
        return enough

    def set(self, value: int | FUEL_LEVEL) -> None:
        if isinstance(value, int) and value < 0:
            raise OptionError("fuel", expected="a number >= 0 or FUEL_LEVEL", got=str(value))
        self._left = value


def with_fuel(claims: Claims, take: Callable[[int], bool]) -> Claims:
    """The claims with the bound symbols that a region replaces, where there is no fuel for it.

    Views take none, but are left out with the fusions that follow the last one. take: an
    executor's `get_fuel`; the option fuel limits one trace.
    """
    limit, fused = int(option("fuel")), 0
    items: list[Item] = []
    left_out: list[Region] = []
    for item in claims.items:
        if not isinstance(item, Region):
            items.append(item)
        elif (limit < 0 or fused < limit) and take(not item.makes_views):
            fused += not item.makes_views
            items += [item, *claims.outside[item.number].exits]
        else:
            left_out.append(item)
            items += claims.outside[item.number].unfused
    by_option = 0 <= limit <= fused
    reason = Reject(f"the option fuel is {limit}" if by_option else "set_fuel's fuel is used up")
    refused = tuple((region, reason) for region in left_out)
    return replace(claims, items=tuple(items), left_out=refused)
