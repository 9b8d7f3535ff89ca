# SPDX-License-Identifier: Apache-2.0
"""Single kernels: operations and sizes -> times beside clone, eager torch and torch.compile.

operation   what a row is              points      which rows at which sizes
pointwise, rows, columns   the rows    contenders  who computes them
check       is a result right          measure     a point -> its Figure
gates       Figures -> bounds met or missed
summary, plot   Figures -> text, picture    run    all of it
"""
