// provides: Shared
// needs: device vec
#ifndef THUNDER_FUSER_EMULATOR
extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
// A typed window on the block's shared memory. Only the emulator uses the count, for its checks.
template <typename T> struct Shared {
  T* base;
  DEVICE Shared(int byte_offset, int)
      : base(reinterpret_cast<T*>(dynamic_shared_bytes + byte_offset)) {}
  DEVICE T get(int i) const { return base[i]; }
  DEVICE void put(int i, T value) const { base[i] = value; }
  template <int N> DEVICE Vec<T, N> getv(int i) const {
    return *reinterpret_cast<const Vec<T, N>*>(base + i);
  }
  template <int N> DEVICE void putv(int i, Vec<T, N> values) const {
    *reinterpret_cast<Vec<T, N>*>(base + i) = values;
  }
};
#endif
