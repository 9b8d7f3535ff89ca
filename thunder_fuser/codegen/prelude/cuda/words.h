// provides: to_word from_word
// needs: device
// A value <-> the word in which blocks of a cluster send it to each other.
template <typename W, typename T> union AsWord {
  W word;
  T value;
  DEVICE AsWord() {}
};
template <typename W, typename T> DEVICE W to_word(T value) {
  AsWord<W, T> both;
  both.word = W{};
  both.value = value;
  return both.word;
}
template <typename T, typename W> DEVICE T from_word(W word) {
  AsWord<W, T> both;
  both.word = word;
  return both.value;
}
