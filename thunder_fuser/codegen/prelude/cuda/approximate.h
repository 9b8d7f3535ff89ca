// provides: approximate_exp2 approximate_reciprocal
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// One instruction each. The error is two units in the last place; what is below 2^-126 is zero.
DEVICE float approximate_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
DEVICE float approximate_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#endif
