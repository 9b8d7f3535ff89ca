// provides: sigmoid silu
// needs: device
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
DEVICE double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }
DEVICE double silu(double x) { return x / (1.0 + exp(-x)); }
