// provides: sync_threads
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
DEVICE void sync_threads() { __syncthreads(); }
#endif
