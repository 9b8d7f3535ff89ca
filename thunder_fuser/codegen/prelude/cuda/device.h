// provides: DEVICE
// needs:
#ifndef THUNDER_FUSER_EMULATOR
#define DEVICE __device__ __forceinline__
#endif
