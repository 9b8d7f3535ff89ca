// provides: prefetch
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// Into the second-level cache.
template <typename T, typename I> DEVICE void prefetch(const T* pointer, I i) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer + i));
}
#endif
