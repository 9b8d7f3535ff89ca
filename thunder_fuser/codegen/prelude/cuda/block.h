// provides: sync_threads sync_warp
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
DEVICE void sync_threads() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
#endif
