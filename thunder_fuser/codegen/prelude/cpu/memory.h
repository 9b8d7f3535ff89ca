// provides: ld st
// needs: device
template <typename T, typename I> DEVICE T ld(const T* pointer, I i) { return pointer[i]; }
// gcc vectorizes no choice by a bool that is loaded as one: a softmax under a mask took six times as
// long.
template <typename I> DEVICE bool ld(const bool* pointer, I i) {
  return ld(reinterpret_cast<const unsigned char*>(pointer), i) != 0;
}
template <typename T, typename I> DEVICE void st(T* pointer, I i, T value) { pointer[i] = value; }
