// provides: f16_to_float float_to_f16 bf16_to_float float_to_bf16
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
DEVICE float f16_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
DEVICE unsigned short float_to_f16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
DEVICE float bf16_to_float(unsigned short bits) {
  float value;
  asm("mov.b32 %0, {%1, %2};" : "=f"(value) : "h"(static_cast<unsigned short>(0)), "h"(bits));
  return value;
}
DEVICE unsigned short float_to_bf16(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif
