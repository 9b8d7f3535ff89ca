// provides: open_gate gates_made gates_ready wait_gate put_to_peer
// needs: device shared types
#ifndef THUNDER_FUSER_EMULATOR
// A gate is an mbarrier in shared memory. It opens when the expected number of bytes has arrived, and
// closes again at once; `parity` says whether to wait for an odd or an even opening. Barriers of the
// whole cluster would also work, but each empties the first-level cache.
DEVICE unsigned shared_address(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}
DEVICE unsigned peer_address(const void* place, int peer) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address) : "r"(shared_address(place)), "r"(peer));
  return address;
}
// One thread of each block calls it, for the first opening (`first`) and again after each opening.
DEVICE void open_gate(Shared<i64> gates, int k, int bytes, bool first) {
  const unsigned gate = shared_address(gates.base + k);
  if (first) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(gate) : "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"(gate), "r"(bytes) : "memory");
}
// All threads call gates_made, then gates_ready. After that every block of the cluster runs, and its
// gates take values. Work between the two, such as a row's loads, does not wait for other blocks.
DEVICE void gates_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEVICE void gates_ready() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
DEVICE void wait_gate(Shared<i64> gates, int k, int parity) {
  asm volatile(
      "{\n.reg .pred open;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1;\n@!open bra again;\n}"
      ::"r"(shared_address(gates.base + k)), "r"(parity) : "memory");
}
// Writes to the same place of another block's window. It may be read there once the gate has opened.
DEVICE void put_to_peer(Shared<i32> window, int peer, int i, i32 word, Shared<i64> gates, int k) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
               ::"r"(peer_address(window.base + i, peer)), "r"(word),
               "r"(peer_address(gates.base + k, peer)) : "memory");
}
DEVICE void put_to_peer(Shared<i64> window, int peer, int i, i64 word, Shared<i64> gates, int k) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
               ::"r"(peer_address(window.base + i, peer)), "l"(word),
               "r"(peer_address(gates.base + k, peer)) : "memory");
}
// Of 16 bytes: a complex number.
template <typename T>
DEVICE void put_to_peer(Shared<T> window, int peer, int i, T pair, Shared<i64> gates, int k) {
  static_assert(sizeof(T) == 16, "a window of words of 4, 8 or 16 bytes");
  const i64* words = reinterpret_cast<const i64*>(&pair);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];"
               ::"r"(peer_address(window.base + i, peer)), "l"(words[0]), "l"(words[1]),
               "r"(peer_address(gates.base + k, peer)) : "memory");
}
#endif
