// provides: checked_index
// needs: device types
#ifndef THUNDER_FUSER_EMULATOR
// An index outside the axis ends the kernel, and the launch fails, as with torch's own assert.
template <typename I, typename T> DEVICE I checked_index(T value, I size) {
  if (value < 0 || value >= size) __trap();
  return static_cast<I>(value);
}
#endif
