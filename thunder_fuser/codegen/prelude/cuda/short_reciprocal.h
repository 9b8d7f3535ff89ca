// provides: short_reciprocal
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// Seven instructions without a branch; 1.0f / x has ten, and a branch that other elements wait for.
// The error is one unit in the last place (of 24 bits, says PTX); what is below 2^-126 stays.
DEVICE float short_reciprocal(float x) {
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#endif
