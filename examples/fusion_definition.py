# SPDX-License-Identifier: Apache-2.0
"""A fusion written down without Thunder: RMS norm, planned for an H200, run on this machine.

Run it: python examples/fusion_definition.py
"""

import torch

from thunder_fuser import DataType, FusionDefinition

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> FusionDefinition:
    """x / sqrt(mean(x²) + 1e-6) * weight. 16-bit floats are computed in float32."""
    with FusionDefinition() as fd:
        a, w = fd.from_pytorch(x), fd.from_pytorch(weight)
        total = fd.ops.sum(fd.ops.mul(a, a), [1], keepdim=True)
        mean = fd.ops.truediv(total, fd.ops.size(a, 1))
        scale = fd.ops.rsqrt(fd.ops.add(mean, 1e-6))
        scaled = fd.ops.mul(fd.ops.mul(a, scale), w)
        fd.add_output(fd.ops.cast(scaled, DataType.BFloat16))
    return fd


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 1024, device=DEVICE).bfloat16()
    weight = torch.randn(1024, device=DEVICE).bfloat16()
    fd = rms_norm(x, weight)
    print(fd)  # Python that defines the same fusion
    print(fd.plan([x, weight], target="h200"))  # which kernels; needs no GPU
    (result,) = fd.execute([x, weight])
    expected = torch.nn.functional.rms_norm(x.float(), (1024,), weight.float(), 1e-6)
    torch.testing.assert_close(result.float(), expected, rtol=0.01, atol=0.01)
    (source,) = fd.sources([x, weight])
    print(f"{source.name}: {len(source.text.splitlines())} lines of source, launched as")
    print(f"    grid {source.grid}, block {source.block}")


main()
