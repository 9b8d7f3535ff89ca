# SPDX-License-Identifier: Apache-2.0
"""What measures or checks more than single kernels; those are `python -m thunder_fuser bench`.

    python -m benchmarks blocks | warm_path | sanitize [--device cpu|cuda] [--json FILE]
"""
