// provides: whole
// needs: device
template <typename T> DEVICE T whole(T value) { return value; }
