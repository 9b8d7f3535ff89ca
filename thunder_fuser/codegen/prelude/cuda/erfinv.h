// provides: erfinv_ erfcinv_
// needs: device
#ifndef THUNDER_FUSER_EMULATOR
DEVICE float erfinv_(float x) { return erfinvf(x); }
DEVICE double erfinv_(double x) { return erfinv(x); }
DEVICE float erfcinv_(float x) { return erfcinvf(x); }
DEVICE double erfcinv_(double x) { return erfcinv(x); }
#endif
