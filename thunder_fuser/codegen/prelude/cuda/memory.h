// provides: ld st
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
// The read-only path is the compiler's choice: it takes it for const __restrict__ parameters.
template <typename T, typename I> DEVICE T ld(const T* pointer, I i) { return pointer[i]; }
template <typename T, typename I> DEVICE void st(T* pointer, I i, T value) { pointer[i] = value; }
#endif
