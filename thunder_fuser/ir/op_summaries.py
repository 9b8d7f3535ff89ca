# SPDX-License-Identifier: Apache-2.0
"""What each op of the table does, in one line, in the names of its arguments."""

from __future__ import annotations

_SUMMARIES = """
abs: The absolute value.
neg: The negation.
relu: x where it is positive, else 0; NaN stays.
sign: -1, 0 or 1, the sign of x.
ceil: The least whole number that is not below x.
floor: The greatest whole number that is not above x.
trunc: x without its fraction.
round: The nearest whole number; of two, the even one.
exp: e to the power x. short=True allows a few wrong digits at the end, on a GPU.
exp2: 2 to the power x.
expm1: exp(x) - 1, exact near 0.
log: The natural logarithm.
log2: The logarithm to base 2.
log10: The logarithm to base 10.
log1p: log(1 + x), exact near 0.
sin: The sine.
cos: The cosine.
tanh: The hyperbolic tangent. short=True allows a few wrong digits at the end, on a GPU.
tan: The tangent.
asin: The inverse sine.
acos: The inverse cosine.
atan: The inverse tangent.
sinh: The hyperbolic sine.
cosh: The hyperbolic cosine.
asinh: The inverse hyperbolic sine.
acosh: The inverse hyperbolic cosine.
atanh: The inverse hyperbolic tangent.
erf: The error function. short=True allows a few wrong digits at the end, on a GPU.
erfc: 1 - erf(x), exact for large x.
one_plus_tanh: 1 + tanh(x), exact for x far below 0.
erfinv: The inverse of erf.
erfcinv: The inverse of erfc.
lgamma: The logarithm of the absolute value of the gamma function.
digamma: The derivative of lgamma.
ndtri: The inverse of the normal distribution function.
sqrt: The square root.
rsqrt: 1 / sqrt(x).
reciprocal: 1 / x. short=True allows a few wrong digits at the end, on a GPU.
frac: x - trunc(x).
sigmoid: 1 / (1 + exp(-x)).
silu: x * sigmoid(x).
real: The real part.
imag: The imaginary part.
complex: A complex number from its parts.
isfinite: True where x is neither infinite nor NaN.
isinf: True where x is infinite.
isnan: True where x is NaN.
isneginf: True where x is negative infinity.
isposinf: True where x is positive infinity.
signbit: True where x has a minus sign, which -0.0 has too.
isreal: True where the imaginary part is 0.
logical_not: True where x is 0.
bitwise_not: Every bit inverted.
add: lhs + rhs.
sub: lhs - rhs.
mul: lhs * rhs.
div: lhs / rhs; of integers, rounded towards 0. short=True is less exact on a GPU.
truediv: lhs / rhs as a float.
fmod: The remainder of lhs / rhs with the sign of lhs, as in C.
mod: The same as fmod.
remainder: The remainder of lhs / rhs with the sign of rhs, as in Python.
pow: lhs to the power rhs.
atan2: The angle of the point (rhs, lhs), from -pi to pi.
nextafter: The next float after lhs towards rhs.
zeta: The Hurwitz zeta function: the sum over k >= 0 of (k + rhs) to the power -lhs.
minimum: The lesser of the two; NaN if either is.
maximum: The greater of the two; NaN if either is.
gcd: The greatest common divisor.
eq: lhs == rhs.
ne: lhs != rhs.
lt: lhs < rhs.
le: lhs <= rhs.
gt: lhs > rhs.
ge: lhs >= rhs.
logical_and: True where neither is 0.
logical_or: True where either is not 0.
bitwise_and: Bits that both have.
bitwise_or: Bits that either has.
bitwise_xor: Bits that exactly one of them has.
bitwise_left_shift: lhs * 2**rhs, in the bits of its type.
bitwise_right_shift: lhs shifted right by rhs bits; the sign stays.
logical_right_shift: lhs shifted right by rhs bits; zeros come in from the left.
where: a where the condition is true, else b.
lerp: start + weight * (end - start).
clamp: x, but at least min and at most max.
threshold: x where it exceeds the threshold, else the value.
cast: arg in another type.
set: A copy.
segment_set: A copy in memory: its readers are in other kernels than its producer.
stride_order: The same elements, in memory with this stride order.
broadcast: arg with a new axis of size 1 wherever the list has True.
broadcast_in_dim: A tensor of this shape, in which the axes of arg are the axes broadcast_dims.
expand: arg with axes of size 1 repeated to this shape; -1 keeps a size.
squeeze: arg without these axes, which have size 1.
permute: arg with its axes in this order.
reshape: The elements in row-major order, in a new shape; one size may be -1.
slice: The elements from start to end, without the end, on each axis, in steps of strides.
pad: arg with value added at the ends of axes; widths (before, after) start at the last axis.
cat: The tensors joined along an axis.
flip: arg with these axes reversed.
index_select: The slices of arg along dim that a vector of indices, or one index, names.
take_along_axis: The elements of arg that the index names along dim; other axes are broadcast.
gather: As take_along_axis, but the index may be shorter than arg and nothing is broadcast.
index_store: arg, which as a result over an input replaces its slices at the indices along dim.
embedding_fwd: The rows of weight that the integers of input name, scaled to max_norm if longer.
full: A tensor of one number.
iota: start, start + step, and so on, length numbers; Int by default.
uniform: Uniform random numbers in [lo, hi), not torch's. Give both rng_* or neither.
normal: Normal random numbers, not torch's. Give both rng_* or neither.
size: The size of an axis, for arithmetic and shapes.
sum: The sum over dims.
prod: The product over dims.
max: The greatest element over dims; NaN if there is one.
min: The least element over dims; NaN if there is one.
cumsum: The sum of all elements up to each one, along dim.
cumprod: The product of all elements up to each one, along dim.
cummax: The greatest of all elements up to each one, along dim.
cummin: The least of all elements up to each one, along dim.
matmul: The matrix product; streams: an axis of the result, and its pieces, each on a stream.
linear: arg @ weight.T + bias; streams: as of matmul.
grouped_mm: A product for each group of rows, columns or summed elements; offsets: where they end.
sdpfa_fwd: (attention of [*batch, H, L, E], its logsumexp, the seed and the offset of its dropout).\
 attn_mask is added to the scores. The result lies in memory as query does.
sdpfa_bwd: The gradients of query, key and value, from arguments and results of sdpfa_fwd.
scatter: A copy of arg with src, or one number, written where the index says along dim.
scatter_add: A copy of arg with src added where the index says along dim.
index_add: A copy of arg with the slices of src added at the indices along dim.
index_copy: A copy of arg with the slices of src written at the indices along dim.
index_put: A copy of arg after arg[index] = src.
index_put_accumulate: As index_put, but src is added.
embedding_backward: The gradient of an embedding's weight from that of its result.
argsort: The indices that sort arg along dim.
sort: (elements of arg in order along dim, their indices).
topk: (the k greatest elements along dim, or the least, their indices).
redistribute: arg in other placements on its mesh: Shard(axis), Replicate() or Partial(sum).
all_gather: The tensors of a group of devices, joined along dim.
reduce_scatter: This device's part, along dim, of the reduction of a group's tensors.
all_reduce: The reduction of the tensors of a group of devices, element by element.
all_to_all: The parts along split_dim that all devices have for this one, joined along cat_dim.
broadcast_from: The tensor of the device with this coordinate along a dimension of the mesh.
"""
SUMMARIES = dict(line.split(": ", 1) for line in _SUMMARIES.strip().splitlines())
