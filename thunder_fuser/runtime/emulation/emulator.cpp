// Runs a kernel's grid on one CPU thread. Each thread of a block is a fiber with its own stack, which
// yields at every barrier and shuffle. The blocks of a cluster take turns, each up to a barrier of the
// cluster or a gate; clusters run one after another. The first broken rule ends the launch: its fiber
// is never resumed, so nothing is thrown through it.
#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

// The thread that touched a byte last (its number in the cluster), and the interval between barriers.
struct EmuByte { unsigned write_epoch, read_epoch; short writer, reader; };

namespace {

constexpr int MAX_THREADS = 1024, MAX_CLUSTER = 16, WARP = 32, SLOT_BYTES = 16;
constexpr size_t STACK_BYTES = 256 * 1024;
// Basic blocks that a thread may run between two barriers, and barriers in a block: far above what any
// kernel needs on sizes one would emulate (about a second), so that a wrong loop ends.
constexpr long long STEP_LIMIT = 300'000'000;
constexpr int BARRIER_LIMIT = 10'000'000;

enum Status { READY, AT_BARRIER, AT_SHUFFLE, AT_CLUSTER_BARRIER, AT_GATE, DONE };

struct Fiber {
  ucontext_t start;
  jmp_buf resume;
  Status status;
  bool entered;
  int line;
  int shuffles;
  int gate, parity;  // what it waits for, at a gate
};

// It opens when the bytes that it expects have arrived. `news`: the clocks of their senders, which
// the block gets that passes the gate.
struct Gate {
  long long missing;
  int openings;
  bool made, told;
  unsigned coming[MAX_CLUSTER], news[MAX_CLUSTER];
};

struct Machine {
  Fiber fibers[MAX_THREADS * MAX_CLUSTER];  // of a cluster, block after block
  alignas(16) unsigned char slots[2][MAX_THREADS * MAX_CLUSTER][SLOT_BYTES];
  unsigned known[MAX_CLUSTER][MAX_CLUSTER], last_epoch;
  Gate* gates;  // one for each 8 bytes of shared memory
  jmp_buf scheduler;
  char* stacks;
  unsigned char* shared;
  EmuByte* shadow;
  EmuDim cluster_block;  // the first block of the cluster
  void (*entry)(void**);
  void** arguments;
  EmuError* error;
  int threads, cluster;
  bool reverse;
  long long steps;
} machine;

int self() { return emu.rank * machine.threads + emu.thread_id; }

EmuDim thread_of(int id) {
  const int x = (int)emu.block_dim.x, y = (int)emu.block_dim.y, in_block = id % machine.threads;
  return {unsigned(in_block % x), unsigned(in_block / x % y), unsigned(in_block / (x * y))};
}

EmuDim block_of(int id) {
  EmuDim block = machine.cluster_block;
  block.y += unsigned(id / machine.threads);
  return block;
}

void report(int kind, int thread, int other, int line, int other_line) {
  EmuError& error = *machine.error;
  error.kind = kind;
  error.line = line;
  error.other_line = other_line;
  error.block = block_of(thread);
  error.thread = thread_of(thread);
  if (other >= 0) error.other_thread = thread_of(other);
  if (other >= 0) error.other_block = block_of(other);
}

// A fiber lives as long as the launch and runs the kernel once for each block.
void fiber_main() {
  for (;;) {
    machine.entry(machine.arguments);
    Fiber& fiber = machine.fibers[self()];
    fiber.status = DONE;
    if (_setjmp(fiber.resume) == 0) _longjmp(machine.scheduler, 1);
  }
}

void enter(Fiber& fiber, int id) {
  fiber.entered = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = machine.stacks + (size_t)id * STACK_BYTES;
  fiber.start.uc_stack.ss_size = STACK_BYTES;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, fiber_main, 0);
  setcontext(&fiber.start);
}

// Runs a thread until it waits, ends or breaks a rule.
void run_thread(int id) {
  emu.thread_id = id % machine.threads;
  emu.thread = thread_of(id);
  machine.steps = 0;
  Fiber& fiber = machine.fibers[id];
  if (_setjmp(machine.scheduler) != 0) return;
  if (fiber.entered) _longjmp(fiber.resume, 1);
  enter(fiber, id);
}

bool failed() { return machine.error->kind != EMU_OK; }

int ordered(int position, int first, int count) {
  return first + (machine.reverse ? count - 1 - position : position);
}

// The first thread of a range whose state or line differs from the range's first thread's.
int odd_one_out(int first, int count) {
  const Fiber& reference = machine.fibers[first];
  for (int id = first + 1; id < first + count; ++id) {
    const Fiber& fiber = machine.fibers[id];
    if (fiber.status != reference.status) return id;
    if (fiber.status != DONE && fiber.line != reference.line) return id;
  }
  return -1;
}

void diverged(int first, int other) {
  const Fiber *a = &machine.fibers[first], *b = &machine.fibers[other];
  report(EMU_DIVERGED, first, other, a->status == DONE ? 0 : a->line, b->status == DONE ? 0 : b->line);
}

void release(int first, int count) {
  for (int id = first; id < first + count; ++id) machine.fibers[id].status = READY;
}

bool any_at_shuffle(int first, int count) {
  for (int id = first; id < first + count; ++id)
    if (machine.fibers[id].status == AT_SHUFFLE) return true;
  return false;
}

// Runs a warp until all its threads are at a barrier or done.
void run_warp(int first, int count) {
  for (;;) {
    for (int position = 0; position < count && !failed(); ++position) {
      const int id = ordered(position, first, count);
      if (machine.fibers[id].status == READY) run_thread(id);
    }
    if (failed() || !any_at_shuffle(first, count)) return;
    const int other = odd_one_out(first, count);
    if (other >= 0) return diverged(first, other);
    release(first, count);
  }
}

void run_warps(int block_first) {
  const int warps = (machine.threads + WARP - 1) / WARP;
  for (int position = 0; position < warps && !failed(); ++position) {
    const int first = ordered(position, 0, warps) * WARP;
    const int rest = machine.threads - first;
    run_warp(block_first + first, rest < WARP ? rest : WARP);
  }
}

void enter_block(int rank) {
  emu.rank = rank;
  emu.block = block_of(rank * machine.threads);
  emu.known = machine.known[rank];
  emu.shared = machine.shared + (size_t)rank * emu.shared_bytes;
  emu.shadow = machine.shadow + (size_t)rank * emu.shared_bytes;
}

// Runs a block until all its threads are at a barrier of the cluster, at a gate, or done.
void run_block(int rank) {
  enter_block(rank);
  const int first = rank * machine.threads;
  for (int barriers = 0; !failed(); ++barriers) {
    run_warps(first);
    if (failed()) return;
    const int other = odd_one_out(first, machine.threads);
    if (other >= 0) return diverged(first, other);
    if (machine.fibers[first].status != AT_BARRIER) return;
    if (barriers == BARRIER_LIMIT) return report(EMU_TOO_LONG, first, -1, machine.fibers[first].line, 0);
    machine.known[rank][rank] = ++machine.last_epoch;
    release(first, machine.threads);
  }
}

Gate& gate_of(int rank, int byte_offset) {
  return machine.gates[((size_t)rank * emu.shared_bytes + byte_offset) / 8];
}

// Lets a block that waits at a gate go on, if the gate has opened.
bool pass_gate(int rank) {
  const int first = rank * machine.threads;
  const Gate& gate = gate_of(rank, machine.fibers[first].gate);
  if (gate.openings % 2 == machine.fibers[first].parity) return false;
  for (int from = 0; from < machine.cluster; ++from)
    if (machine.known[rank][from] < gate.news[from]) machine.known[rank][from] = gate.news[from];
  machine.known[rank][rank] = ++machine.last_epoch;
  release(first, machine.threads);
  return true;
}

bool pass_gates() {
  bool any = false;
  for (int rank = 0; rank < machine.cluster; ++rank)
    if (machine.fibers[rank * machine.threads].status == AT_GATE) any |= pass_gate(rank);
  return any;
}

void forget() {
  const unsigned now = ++machine.last_epoch;
  for (auto& row : machine.known)
    for (unsigned& entry : row) entry = now;
}

void open_if_full(Gate& gate) {
  if (!gate.told || gate.missing != 0) return;
  gate.told = false;
  ++gate.openings;
  memcpy(gate.news, gate.coming, sizeof gate.news);
}

void run_blocks() {
  for (int position = 0; position < machine.cluster && !failed(); ++position) {
    const int rank = ordered(position, 0, machine.cluster);
    if (machine.fibers[rank * machine.threads].status == READY) run_block(rank);
  }
}

void run_cluster() {
  const int all = machine.threads * machine.cluster;
  const size_t shared = (size_t)emu.shared_bytes * machine.cluster;
  if (machine.cluster > 1) memset((void*)machine.gates, 0, (shared / 8 + 1) * sizeof(Gate));
  forget();
  emu.first_epoch = machine.last_epoch;
  release(0, all);
  for (int barriers = 0; !failed(); ++barriers) {
    run_blocks();
    if (failed()) return;
    if (pass_gates()) continue;
    const int other = odd_one_out(0, all);
    if (other >= 0) return diverged(0, other);
    if (machine.fibers[0].status == DONE) return;
    if (machine.fibers[0].status == AT_GATE)
      return report(EMU_STUCK, 0, -1, machine.fibers[0].line, 0);
    if (barriers == BARRIER_LIMIT) return report(EMU_TOO_LONG, 0, -1, machine.fibers[0].line, 0);
    forget();
    release(0, all);
  }
}

void run_grid() {
  const EmuDim grid = emu.grid_dim;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; y += (unsigned)machine.cluster)
      for (unsigned x = 0; x < grid.x && !failed(); ++x) {
        machine.cluster_block = {x, y, z};
        run_cluster();
      }
}

char* map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : (char*)memory;
}

int alignment_of(int bytes) { return bytes < 16 ? bytes : 16; }

// Replaces a reader's number if several threads of block `rank`, or of several blocks, have read.
constexpr short SEVERAL_BLOCKS = -1;
short several(int rank) { return (short)(-2 - rank); }
int rank_of(short who) { return who < 0 ? -2 - who : who / emu.threads; }

// Whether a barrier or a gate lies between an access and now.
bool is_past(unsigned epoch, short who) {
  if (who != SEVERAL_BLOCKS) return epoch < emu.known[rank_of(who)];
  for (int rank = 0; rank < emu.cluster; ++rank)
    if (epoch >= emu.known[rank]) return false;
  return true;
}

void note_read(EmuByte& byte, long long i, int line) {
  const short me = (short)self();
  const unsigned now = emu.known[emu.rank];
  if (byte.write_epoch < emu.first_epoch) emu_fail(EMU_SHARED_UNWRITTEN, -1, i, 0, line, -1);
  if (byte.writer != me && !is_past(byte.write_epoch, byte.writer))
    emu_fail(EMU_SHARED_RACE, -1, i, 0, line, byte.writer);
  if (byte.reader == me || is_past(byte.read_epoch, byte.reader)) {
    byte.reader = me;
    byte.read_epoch = now;
    return;
  }
  const bool own = byte.reader != SEVERAL_BLOCKS && rank_of(byte.reader) == emu.rank;
  byte.reader = own ? several(emu.rank) : SEVERAL_BLOCKS;
  byte.read_epoch = byte.read_epoch > now ? byte.read_epoch : now;
}

void note_write(EmuByte& byte, long long i, int line) {
  const short me = (short)self();
  if (byte.writer != me && !is_past(byte.write_epoch, byte.writer))
    emu_fail(EMU_SHARED_RACE, -1, i, 0, line, byte.writer);
  if (byte.reader != me && !is_past(byte.read_epoch, byte.reader))
    emu_fail(EMU_SHARED_RACE, -1, i, 0, line, byte.reader);
  byte.writer = me;
  byte.write_epoch = emu.known[emu.rank];
}

}  // namespace

extern "C" {

EmuState emu;

void emu_fail(int kind, int parameter, long long index, long long limit, int line, int other) {
  report(kind, self(), other, line, 0);
  machine.error->parameter = parameter;
  machine.error->index = index;
  machine.error->limit = limit;
  _longjmp(machine.scheduler, 1);
}

char* emu_address(const void* pointer, long long i, int size, int count, int line) {
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
  const int alignment = alignment_of(size * count);
  if (at % (unsigned)alignment != 0)
    emu_fail(EMU_MISALIGNED, (int)parameter, first, alignment, line, -1);
  return buffer.data + (at - buffer.tagged);
}

void emu_check_window(int offset, int count, int size, int line) {
  const long long end = offset + (long long)count * size;
  if (offset < 0 || count < 0 || end > emu.shared_bytes)
    emu_fail(EMU_SHARED_WINDOW, -1, end, emu.shared_bytes, line, -1);
}

int emu_shared_at(int offset, int count, long long i, int size, int n, int line) {
  if (i < 0 || i > count - n) emu_fail(EMU_SHARED_BOUNDS, -1, i, count, line, -1);
  const int where = offset + (int)i * size, alignment = alignment_of(size * n);
  if (where % alignment != 0) emu_fail(EMU_SHARED_MISALIGNED, -1, i, alignment, line, -1);
  return where;
}

void emu_shared_read(void* to, int where, long long i, int size, int n, int line) {
  EmuByte* byte = emu.shadow + where;
  for (int k = 0; k < n; ++k)
    for (int b = 0; b < size; ++b) note_read(*byte++, i + k, line);
  memcpy(to, emu.shared + where, (size_t)size * n);
}

void emu_shared_write(const void* from, int where, long long i, int size, int n, int line) {
  EmuByte* byte = emu.shadow + where;
  for (int k = 0; k < n; ++k)
    for (int b = 0; b < size; ++b) note_write(*byte++, i + k, line);
  memcpy(emu.shared + where, from, (size_t)size * n);
}

void emu_wait(EmuWait what, int line) {
  Fiber& fiber = machine.fibers[self()];
  constexpr Status STATUS[] = {AT_BARRIER, AT_SHUFFLE, AT_CLUSTER_BARRIER, AT_GATE};
  fiber.status = STATUS[what];
  fiber.line = line;
  if (_setjmp(fiber.resume) == 0) _longjmp(machine.scheduler, 1);
}

void emu_gate_expect(int byte_offset, int bytes, bool first, int line) {
  Gate& gate = gate_of(emu.rank, byte_offset);
  if (gate.made == first || gate.told) emu_fail(EMU_GATE, -1, byte_offset / 8, 0, line, -1);
  gate.made = gate.told = true;
  gate.missing += bytes;
  open_if_full(gate);
}

// Bytes that arrive before the gate's next byte count is set count for its next opening.
void emu_gate_put(int peer, int byte_offset, int bytes, int line) {
  Gate& gate = gate_of(peer, byte_offset);
  if (!gate.made || machine.known[emu.rank][peer] == emu.first_epoch)
    emu_fail(EMU_PEER_NOT_READY, -1, peer, 0, line, -1);
  gate.missing -= bytes;
  for (int from = 0; from < machine.cluster; ++from)
    if (gate.coming[from] < machine.known[emu.rank][from])
      gate.coming[from] = machine.known[emu.rank][from];
  if (gate.coming[emu.rank] == machine.known[emu.rank][emu.rank]) ++gate.coming[emu.rank];
  open_if_full(gate);
}

void emu_gate_wait(int byte_offset, int parity, int line) {
  Fiber& fiber = machine.fibers[self()];
  fiber.gate = byte_offset;
  fiber.parity = parity;
  emu_wait(EMU_AT_GATE, line);
}

// Two sets of slots, used in turn: a thread that is already at the next shuffle does not overwrite
// values that its warp must still read. It cannot be two shuffles ahead.
void* emu_shuffle_slot() {
  const int turn = machine.fibers[self()].shuffles++ & 1;
  return machine.slots[turn][self()];
}

const void* emu_shuffle_peer(int id) {
  const int turn = (machine.fibers[self()].shuffles - 1) & 1;
  return machine.slots[turn][self() - emu.thread_id + (id < machine.threads ? id : emu.thread_id)];
}

// The functions that -fsanitize=bounds-strict and integer-divide-by-zero call. They are defined here,
// so the sanitizers' runtime is not needed. The first argument begins with the place in the source.
struct EmuPlace { const char* file; unsigned line, column; };
void __ubsan_handle_out_of_bounds(void* place, void* index) {
  emu_fail(EMU_LOCAL_BOUNDS, -1, (long long)index, 0, (int)((EmuPlace*)place)->line, -1);
}

void __ubsan_handle_divrem_overflow(void* place, void*, void*) {
  emu_fail(EMU_DIVISION, -1, 0, 0, (int)((EmuPlace*)place)->line, -1);
}

// Called by -fsanitize-coverage=trace-pc in every basic block of a kernel.
void __sanitizer_cov_trace_pc() {
  if (__builtin_expect(++machine.steps > STEP_LIMIT, 0)) {
    machine.steps = 0;
    emu_fail(EMU_TOO_LONG, -1, 0, 0, 0, -1);
  }
}

struct EmuLaunch {
  void (*entry)(void**);
  void** arguments;
  const EmuBuffer* buffers;
  int buffer_count, shared_bytes, reverse, cluster;
  EmuDim grid, block;
};

// Runs the whole grid; `error->kind` is the rule that was broken, or 0. Returns 0, or -1 without
// memory. The caller holds a lock, so there is one launch at a time.
int emu_run(const EmuLaunch* launch, EmuError* error) {
  const int threads = int(launch->block.x * launch->block.y * launch->block.z);
  const int all = threads * launch->cluster;
  memset(error, 0, sizeof *error);
  memset(&emu, 0, sizeof emu);
  machine.entry = launch->entry;
  machine.arguments = launch->arguments;
  machine.error = error;
  machine.threads = emu.threads = threads;
  machine.cluster = emu.cluster = launch->cluster;
  machine.last_epoch = 0;
  machine.reverse = launch->reverse;
  emu.block_dim = launch->block;
  emu.grid_dim = launch->grid;
  emu.buffers = launch->buffers;
  emu.buffer_count = launch->buffer_count;
  emu.shared_bytes = launch->shared_bytes;
  for (int id = 0; id < all; ++id) {
    machine.fibers[id].entered = false;
    machine.fibers[id].shuffles = 0;  // they differ after a launch that failed
  }
  const size_t stack_bytes = all * STACK_BYTES;
  const size_t shared = (size_t)launch->shared_bytes * launch->cluster;
  machine.stacks = map(stack_bytes);
  machine.shadow = (EmuByte*)map(shared * sizeof(EmuByte) + 1);
  machine.shared = (unsigned char*)map(shared + 16);
  machine.gates = (Gate*)map((shared / 8 + 1) * sizeof(Gate));
  const bool mapped = machine.stacks && machine.shadow && machine.shared && machine.gates;
  if (mapped) run_grid();
  if (machine.stacks) munmap(machine.stacks, stack_bytes);
  if (machine.shadow) munmap(machine.shadow, shared * sizeof(EmuByte) + 1);
  if (machine.shared) munmap(machine.shared, shared + 16);
  if (machine.gates) munmap((void*)machine.gates, (shared / 8 + 1) * sizeof(Gate));
  return mapped ? 0 : -1;
}
}
