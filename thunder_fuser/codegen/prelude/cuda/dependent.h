// provides: after_earlier_kernels
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// This kernel waits until all before it have ended and their results are in memory. Nothing is read
// or written before. Then the next kernel may be launched while this one runs, so no more than two
// are on the device. In a launch that does not depend on others in this way neither instruction does
// anything.
DEVICE void after_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif
