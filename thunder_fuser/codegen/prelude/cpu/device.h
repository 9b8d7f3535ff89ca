// provides: DEVICE
// needs:
#define DEVICE inline __attribute__((always_inline))
