// provides: fused
// needs: device
DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
