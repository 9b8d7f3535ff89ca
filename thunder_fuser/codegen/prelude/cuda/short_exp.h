// provides: short_exp
// needs: device approximate
// Two instructions where expf takes eight. The error is 2 + |x| units in the last place (of 24
// bits), so 2^-17 of the result at most; what is below 2^-126 becomes zero. Where it may be used:
// short_exps of lower/context.py.
DEVICE float short_exp(float x) { return approximate_exp2(x * 1.44269504f); }
