# SPDX-License-Identifier: Apache-2.0
"""A plan in which no region reads a tensor by the name that it had before it was written."""

from __future__ import annotations

from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import AliasError
from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.trace.proxies import makes, overwritten, reads


def refuse_stale_reads(plan: Plan) -> Plan:
    """Raises AliasError if a region reads a tensor by its old name after an in-place write.

    Thunder gives a written tensor a new name, and a region must read the contents that the name
    stands for: by the old name it would read the new contents. Thunder's own check looks only at
    fusions called nvFusion.
    """
    if not plan.options.checks_reads:
        return plan
    written: dict[str, BoundSymbol] = {}
    count = 0
    for item in plan.items:
        if isinstance(item, Region):
            name = "a view" if item.makes_views else f"{plan.options.prefix}{count}"
            for proxy in item.inputs:
                if proxy.name in written:
                    raise _read_after_write(name, proxy, written[proxy.name])
            count += not item.makes_views
        else:
            written |= {proxy.name: item for proxy in overwritten(item)}
    return plan


def _read_after_write(region: str, proxy: Proxy, copy: BoundSymbol) -> AliasError:
    return AliasError(
        f"{region} reads {proxy.name} after {makes(copy)[0].name} = {copy.sym.name}"
        f"({', '.join(one.name for one in reads(copy))}) has written it",
        expected="the value that was written",
        got=f"{proxy.name}, the tensor written to",
        do="use the result of the in-place op, or set disable_inplace_copy_check=True",
    )
