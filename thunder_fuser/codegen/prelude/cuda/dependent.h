// provides: after_earlier_kernels next_kernel_may_start
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// This kernel waits until all before it have ended and their results are in memory. Before, it
// reads at most what none of them writes. In a launch in turn it does nothing.
DEVICE void after_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel's blocks may be placed when all of this one's are, on SMs that these leave free.
// They wait there.
DEVICE void next_kernel_may_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
#endif
