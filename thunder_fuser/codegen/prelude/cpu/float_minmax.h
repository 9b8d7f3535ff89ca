// provides: float_max float_min
// needs: device
DEVICE float float_max(float a, float b) { return (a > b) | (a != a) ? a : b; }
DEVICE float float_min(float a, float b) { return (a < b) | (a != a) ? a : b; }
