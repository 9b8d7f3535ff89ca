// The CUDA side of a kernel, for a C++ compiler: pasted in front of the unchanged CUDA text.
// Nothing here touches a type of the prelude before a kernel uses it, so it can come first.
// A kernel sees tagged addresses, not real ones: bits 36 and up say which parameter it came from, so an
// access is checked against that parameter's own range however near another one lies in memory.
#pragma once
#define THUNDER_FUSER_EMULATOR 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define DEVICE inline __attribute__((always_inline))

enum EmuErrorKind {
  EMU_OK, EMU_OUT_OF_BOUNDS, EMU_MISALIGNED, EMU_NO_PARAMETER, EMU_SHARED_BOUNDS,
  EMU_SHARED_MISALIGNED, EMU_SHARED_UNWRITTEN, EMU_SHARED_RACE, EMU_DIVERGED, EMU_LOCAL_BOUNDS,
  EMU_DIVISION, EMU_TOO_LONG, EMU_SHARED_WINDOW
};
struct EmuDim { unsigned x, y, z; };
// A parameter's memory: `bytes` bytes at `data`, which a kernel addresses from `tagged`.
struct EmuBuffer { unsigned long long tagged; long long bytes; char* data; };
struct EmuError {
  int kind, parameter, line, other_line;
  EmuDim block, thread, other_thread;
  long long index, limit;
};
struct EmuByte { unsigned write_epoch, read_epoch; short writer, reader; };
struct EmuState {
  EmuDim thread, block, block_dim, grid_dim;
  int thread_id, buffer_count, shared_bytes;
  unsigned epoch, first_epoch;  // of the current barrier interval, and of the block's first
  const EmuBuffer* buffers;
  unsigned char* shared;
  EmuByte* shadow;
};
enum EmuWait { EMU_AT_BARRIER, EMU_AT_SHUFFLE };

extern "C" {
extern EmuState emu;
[[noreturn]] void emu_fail(int kind, int parameter, long long index, long long limit, int line,
                           int other_thread);
void emu_wait(EmuWait what, int line);
void* emu_shuffle_slot();                   // where this thread puts its value
const void* emu_shuffle_peer(int lane_id);  // where a thread of the warp has put its own
// What -fsanitize=bounds-strict and integer-divide-by-zero call; defined here, so that their own
// runtime is not needed. The first argument starts with the place in the source.
struct EmuPlace { const char* file; unsigned line, column; };
__attribute__((weak)) void __ubsan_handle_out_of_bounds(void* place, void* index) {
  emu_fail(EMU_LOCAL_BOUNDS, -1, (long long)index, 0, (int)((EmuPlace*)place)->line, -1);
}
__attribute__((weak)) void __ubsan_handle_divrem_overflow(void* place, void*, void*) {
  emu_fail(EMU_DIVISION, -1, 0, 0, (int)((EmuPlace*)place)->line, -1);
}
}
#define threadIdx emu.thread
#define blockIdx emu.block
#define blockDim emu.block_dim
#define gridDim emu.grid_dim

constexpr int emu_alignment(unsigned long bytes) { return bytes < 16 ? (int)bytes : 16; }

inline char* emu_address(const void* pointer, long long i, int size, int count, int line) {
  const unsigned long long address = (unsigned long long)pointer;
  const unsigned long long parameter = (address >> 36) - 1;
  if (parameter >= (unsigned long long)emu.buffer_count)
    emu_fail(EMU_NO_PARAMETER, -1, i, 0, line, -1);
  const EmuBuffer& buffer = emu.buffers[parameter];
  const long long first = (long long)(address - buffer.tagged) / size + i;
  const long long elements = buffer.bytes / size;
  if (first < 0 || first > elements - count)
    emu_fail(EMU_OUT_OF_BOUNDS, (int)parameter, first, elements, line, -1);
  const unsigned long long at = address + (unsigned long long)i * size;
  if (at % emu_alignment((unsigned long)size * count) != 0)
    emu_fail(EMU_MISALIGNED, (int)parameter, first, emu_alignment(size * count), line, -1);
  return buffer.data + (at - buffer.tagged);
}

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
template <int N, typename T, typename I>
inline Vec<T, N> ldv(const T* pointer, I i, int line = __builtin_LINE()) {
  Vec<T, N> values;
  __builtin_memcpy(&values, emu_address(pointer, i, sizeof(T), N, line), sizeof(T) * N);
  return values;
}
template <int N, typename T, typename I>
inline void stv(T* pointer, I i, Vec<T, N> values, int line = __builtin_LINE()) {
  __builtin_memcpy(emu_address(pointer, i, sizeof(T), N, line), &values, sizeof(T) * N);
}

constexpr short EMU_MANY = -1;  // more than one thread has read the byte in this interval

inline void emu_note_read(EmuByte& byte, long long i, int line) {
  if (byte.write_epoch < emu.first_epoch) emu_fail(EMU_SHARED_UNWRITTEN, -1, i, 0, line, -1);
  if (byte.write_epoch == emu.epoch && byte.writer != emu.thread_id)
    emu_fail(EMU_SHARED_RACE, -1, i, 0, line, byte.writer);
  const bool alone = byte.read_epoch != emu.epoch || byte.reader == emu.thread_id;
  byte.reader = alone ? (short)emu.thread_id : EMU_MANY;
  byte.read_epoch = emu.epoch;
}
inline void emu_note_write(EmuByte& byte, long long i, int line) {
  if (byte.write_epoch == emu.epoch && byte.writer != emu.thread_id)
    emu_fail(EMU_SHARED_RACE, -1, i, 0, line, byte.writer);
  if (byte.read_epoch == emu.epoch && byte.reader != emu.thread_id)
    emu_fail(EMU_SHARED_RACE, -1, i, 0, line, byte.reader);
  byte.writer = (short)emu.thread_id;
  byte.write_epoch = emu.epoch;
}

template <typename T> struct Shared {
  int byte_offset, count;
  Shared(int byte_offset, int count, int line = __builtin_LINE())
      : byte_offset(byte_offset), count(count) {
    const long long end = byte_offset + (long long)count * (long long)sizeof(T);
    if (byte_offset < 0 || count < 0 || end > emu.shared_bytes)
      emu_fail(EMU_SHARED_WINDOW, -1, end, emu.shared_bytes, line, -1);
  }
  int at(long long i, int n, int line) const {
    if (i < 0 || i > count - n) emu_fail(EMU_SHARED_BOUNDS, -1, i, count, line, -1);
    const int where = byte_offset + (int)i * (int)sizeof(T);
    const int alignment = emu_alignment(sizeof(T) * n);
    if (where % alignment != 0) emu_fail(EMU_SHARED_MISALIGNED, -1, i, alignment, line, -1);
    return where;
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
    const int where = at(i, n, line);
    for (int k = 0; k < (int)sizeof(T) * n; ++k)
      emu_note_read(emu.shadow[where + k], i + k / (int)sizeof(T), line);
    __builtin_memcpy(to, emu.shared + where, sizeof(T) * n);
  }
  void write(const void* from, int i, int n, int line) const {
    const int where = at(i, n, line);
    for (int k = 0; k < (int)sizeof(T) * n; ++k)
      emu_note_write(emu.shadow[where + k], i + k / (int)sizeof(T), line);
    __builtin_memcpy(emu.shared + where, from, sizeof(T) * n);
  }
};

inline void sync_threads(int line = __builtin_LINE()) { emu_wait(EMU_AT_BARRIER, line); }

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
