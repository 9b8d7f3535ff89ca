// provides: short_reciprocal
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// Four instructions without a branch, where 1.0f / x takes ten and one. The error is one unit in the
// last place (of 24 bits); what is below 2^-126 stays.
DEVICE float short_reciprocal(float x) {
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#endif
