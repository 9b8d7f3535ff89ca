// provides: short_reciprocal
// needs: device
// For the emulator, which has no instruction for it.
DEVICE float short_reciprocal(float x) { return 1.0f / x; }
