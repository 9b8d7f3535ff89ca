// provides: streamed
// needs: device types
#ifndef THUNDER_FUSER_EMULATOR
extern "C" __device__ void* __nv_associate_access_property(const void*, unsigned long long);
// The pointer, whose loads ask the second-level cache to keep what they read: the compiler adds a
// hint to each.
template <typename T> DEVICE const T* streamed(const T* pointer) {
  u64 last;
  asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(last));
  return static_cast<const T*>(__nv_associate_access_property(pointer, last));
}
#endif
