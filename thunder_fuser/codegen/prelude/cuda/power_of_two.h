// provides: power_of_two_below
// needs: device
// The largest power of two that is not above n.
DEVICE constexpr int power_of_two_below(int n) {
  int power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}
