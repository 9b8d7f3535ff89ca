// provides: short_exp
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// Two instructions where expf takes eight. The error is 2 + |x| units in the last place (of 24
// bits), so 2^-17 of the result at most; what is below 2^-126 becomes zero. Where it may be used:
// short_exps of lower/context.py.
DEVICE float short_exp(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
}
#endif
