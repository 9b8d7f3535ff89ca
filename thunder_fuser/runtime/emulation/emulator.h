// CUDA's functions for a C++ compiler. This text is put in front of the unchanged CUDA text. It can
// come first, because it uses types of the prelude only in templates.
// A kernel sees tagged addresses: bits 36 and up are the parameter's number. So an access is checked
// against the range of its own parameter, even if another parameter's memory is near.
#pragma once
#define THUNDER_FUSER_EMULATOR 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) alignas(n)
#define __builtin_assume(condition)
#define DEVICE inline __attribute__((always_inline))

enum EmuErrorKind {
  EMU_OK, EMU_OUT_OF_BOUNDS, EMU_MISALIGNED, EMU_NO_PARAMETER, EMU_SHARED_BOUNDS,
  EMU_SHARED_MISALIGNED, EMU_SHARED_UNWRITTEN, EMU_SHARED_RACE, EMU_DIVERGED, EMU_LOCAL_BOUNDS,
  EMU_DIVISION, EMU_TOO_LONG, EMU_SHARED_WINDOW, EMU_NO_PEER, EMU_PEER_NOT_READY, EMU_GATE,
  EMU_STUCK, EMU_BAD_INDEX
};
struct EmuDim { unsigned x, y, z; };
// A parameter's memory: `bytes` bytes at `data`, which a kernel addresses from `tagged`.
struct EmuBuffer { unsigned long long tagged; long long bytes; char* data; };
struct EmuError {
  int kind, parameter, line, other_line;
  EmuDim block, thread, other_block, other_thread;
  long long index, limit;
};
struct EmuByte;  // what is known of a byte of shared memory
struct EmuState {
  EmuDim thread, block, block_dim, grid_dim;
  int thread_id, buffer_count, shared_bytes, rank, cluster, threads;
  unsigned first_epoch;  // of the cluster's first interval between barriers
  // A vector clock: for each block of the cluster, the first interval that this block has not waited
  // for. Its own entry is the current interval. A barrier or a gate brings the clocks of the others.
  const unsigned* known;
  const EmuBuffer* buffers;
  unsigned char* shared;  // the block's own; those of its cluster lie side by side
  EmuByte* shadow;
};
enum EmuWait { EMU_AT_BARRIER, EMU_AT_SHUFFLE, EMU_AT_CLUSTER_BARRIER, EMU_AT_GATE };

extern "C" {
extern EmuState emu;
[[noreturn]] void emu_fail(int kind, int parameter, long long index, long long limit, int line,
                           int other_thread);
void emu_wait(EmuWait what, int line);
void emu_gate_expect(int byte_offset, int bytes, bool first, int line);
void emu_gate_put(int peer, int byte_offset, int bytes, int line);
void emu_gate_wait(int byte_offset, int parity, int line);
void* emu_shuffle_slot();                   // where this thread puts its value
const void* emu_shuffle_peer(int lane_id);  // where a thread of the warp has put its own
// Accesses are checked here, in functions that are compiled once and not with each kernel.
// The memory of `count` elements of `size` bytes from pointer[i] on.
char* emu_address(const void* pointer, long long i, int size, int count, int line);
// Shared memory: the byte at which `n` elements of `size` bytes from i on begin, in a window of
// `count` elements from `offset` on; and copies of them, `i` being the number of the first.
void emu_check_window(int offset, int count, int size, int line);
int emu_shared_at(int offset, int count, long long i, int size, int n, int line);
void emu_shared_read(void* to, int where, long long i, int size, int n, int line);
void emu_shared_write(const void* from, int where, long long i, int size, int n, int line);
}
#define threadIdx emu.thread
#define blockIdx emu.block
#define blockDim emu.block_dim
#define gridDim emu.grid_dim

template <typename T, int N> struct Vec;
template <typename T, typename I>
inline T ld(const T* pointer, I i, int line = __builtin_LINE()) {
  T value;
  __builtin_memcpy(&value, emu_address(pointer, i, sizeof(T), 1, line), sizeof(T));
  return value;
}
template <typename T, typename I>
inline void st(T* pointer, I i, T value, int line = __builtin_LINE()) {
  __builtin_memcpy(emu_address(pointer, i, sizeof(T), 1, line), &value, sizeof(T));
}
template <typename T, typename I>
inline void prefetch(const T* pointer, I i, int line = __builtin_LINE()) {
  emu_address(pointer, i, sizeof(T), 1, line);  // stops outside the tensor, as a load does
}
template <int N, typename T, typename I>
inline Vec<T, N> ldv(const T* pointer, I i, int line = __builtin_LINE()) {
  Vec<T, N> values;
  __builtin_memcpy(&values, emu_address(pointer, i, sizeof(T), N, line), sizeof(T) * N);
  return values;
}
template <int N, typename T, typename I>
inline Vec<T, N> ldv_if(bool holds, const T* pointer, I i, int line = __builtin_LINE()) {
  return holds ? ldv<N>(pointer, i, line) : Vec<T, N>{};
}
template <int N, typename T, typename I>
inline Vec<T, N> lde(const T* pointer, I i, I limit, bool inside = false,
                     int line = __builtin_LINE()) {
  if (inside || i <= limit - N) return ldv<N>(pointer, i, line);
  Vec<T, N> values{};
  for (int k = 0; i + k < limit; ++k) values.v[k] = ld(pointer, i + k, line);
  return values;
}
template <int N, typename T, typename I>
inline void stv(T* pointer, I i, Vec<T, N> values, int line = __builtin_LINE()) {
  __builtin_memcpy(emu_address(pointer, i, sizeof(T), N, line), &values, sizeof(T) * N);
}

template <typename I, typename T>
inline I checked_index(T value, I size, int line = __builtin_LINE()) {
  if (value < 0 || value >= size) emu_fail(EMU_BAD_INDEX, -1, value, size, line, -1);
  return static_cast<I>(value);
}

template <typename T> struct Shared {
  int byte_offset, count;
  Shared(int byte_offset, int count, int line = __builtin_LINE())
      : byte_offset(byte_offset), count(count) {
    emu_check_window(byte_offset, count, sizeof(T), line);
  }
  int at(long long i, int n, int line) const {
    return emu_shared_at(byte_offset, count, i, sizeof(T), n, line);
  }
  template <int N> Vec<T, N> getv(int i, int line = __builtin_LINE()) const {
    Vec<T, N> values;
    read(&values, i, N, line);
    return values;
  }
  template <int N> void putv(int i, Vec<T, N> values, int line = __builtin_LINE()) const {
    write(&values, i, N, line);
  }
  T get(int i, int line = __builtin_LINE()) const {
    T value;
    read(&value, i, 1, line);
    return value;
  }
  void put(int i, T value, int line = __builtin_LINE()) const { write(&value, i, 1, line); }
  void read(void* to, int i, int n, int line) const {
    emu_shared_read(to, at(i, n, line), i, sizeof(T), n, line);
  }
  void write(const void* from, int i, int n, int line) const {
    emu_shared_write(from, at(i, n, line), i, sizeof(T), n, line);
  }
};

inline void sync_threads(int line = __builtin_LINE()) { emu_wait(EMU_AT_BARRIER, line); }
inline void sync_warp() {}  // no memory is exchanged at it
template <typename T>
inline const T* streamed(const T* pointer) { return pointer; }
inline void next_kernel_may_start() {}
inline void after_earlier_kernels() {}  // kernels run one after another here
inline void gates_made() {}
inline void gates_ready(int line = __builtin_LINE()) { emu_wait(EMU_AT_CLUSTER_BARRIER, line); }
inline void open_gate(Shared<long long> gates, int k, int bytes, bool first,
                      int line = __builtin_LINE()) {
  emu_gate_expect(gates.at(k, 1, line), bytes, first, line);
}
inline void wait_gate(Shared<long long> gates, int k, int parity, int line = __builtin_LINE()) {
  emu_gate_wait(gates.at(k, 1, line), parity, line);
}
template <typename T>
inline void put_to_peer(Shared<T> window, int peer, int i, T value, Shared<long long> gates, int k,
                        int line = __builtin_LINE()) {
  if (peer < 0 || peer >= emu.cluster) emu_fail(EMU_NO_PEER, -1, peer, emu.cluster, line, -1);
  const int where = window.at(i, 1, line) + (peer - emu.rank) * emu.shared_bytes;
  emu_shared_write(&value, where, i, sizeof(T), 1, line);
  emu_gate_put(peer, gates.at(k, 1, line), sizeof(T), line);
}

template <typename T>
inline T shfl_xor(T value, int mask, int width, int line = __builtin_LINE()) {
  __builtin_memcpy(emu_shuffle_slot(), &value, sizeof(T));
  emu_wait(EMU_AT_SHUFFLE, line);
  const int partner = emu.thread_id ^ mask;
  const bool inside = partner / width == emu.thread_id / width;
  __builtin_memcpy(&value, emu_shuffle_peer(inside ? partner : emu.thread_id), sizeof(T));
  return value;
}

template <typename T>
inline T shfl_idx(T value, int source, int width, int line = __builtin_LINE()) {
  __builtin_memcpy(emu_shuffle_slot(), &value, sizeof(T));
  emu_wait(EMU_AT_SHUFFLE, line);
  __builtin_memcpy(&value, emu_shuffle_peer(emu.thread_id / width * width + source % width), sizeof(T));
  return value;
}

// An argument's 8 bytes, read as whatever type the kernel's parameter has.
struct EmuArgument {
  const void* slot;
  template <typename T> operator T() const {
    T value;
    __builtin_memcpy(&value, slot, sizeof(T));
    return value;
  }
};
