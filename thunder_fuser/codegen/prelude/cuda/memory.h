// provides: ld st
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
template <typename T, typename I> DEVICE T ld(const T* pointer, I i) { return pointer[i]; }
template <typename T, typename I> DEVICE void st(T* pointer, I i, T value) { pointer[i] = value; }
#endif
