// provides: float_max float_min
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// One instruction, where comparing and choosing take four.
DEVICE float float_max(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
DEVICE float float_min(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
#endif
