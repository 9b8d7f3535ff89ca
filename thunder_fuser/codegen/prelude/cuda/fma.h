// provides: fused
// needs: device
// a * b + c, rounded once.
#ifndef THUNDER_FUSER_EMULATOR
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#endif
