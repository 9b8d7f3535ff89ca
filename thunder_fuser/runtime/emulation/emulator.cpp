// Runs a kernel's grid on one CPU thread: each thread of a block is a fiber with its own stack, which
// gives up the processor at every barrier and shuffle. Blocks run one after another. The first broken
// rule ends the launch: the fiber that broke it is left where it is, and nothing is thrown through it.
#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

constexpr int MAX_THREADS = 1024, WARP = 32, SLOT_BYTES = 16;
constexpr size_t STACK_BYTES = 256 * 1024;
// Basic blocks that a thread may run between two barriers, and barriers in a block: far above what any
// kernel needs on sizes one would emulate (about a second), so that a wrong loop ends.
constexpr long long STEP_LIMIT = 300'000'000;
constexpr int BARRIER_LIMIT = 10'000'000;

enum Status { READY, AT_BARRIER, AT_SHUFFLE, DONE };

struct Fiber {
  ucontext_t start;
  jmp_buf resume;
  Status status;
  bool entered;
  int line;
  int shuffles;
};

struct Machine {
  Fiber fibers[MAX_THREADS];
  alignas(16) unsigned char slots[2][MAX_THREADS][SLOT_BYTES];
  jmp_buf scheduler;
  char* stacks;
  void (*entry)(void**);
  void** arguments;
  EmuError* error;
  int threads;
  bool reverse;
  long long steps;
} machine;

EmuDim thread_of(int id) {
  const int x = (int)emu.block_dim.x, y = (int)emu.block_dim.y;
  return {unsigned(id % x), unsigned(id / x % y), unsigned(id / (x * y))};
}

void report(int kind, int thread, int other, int line, int other_line) {
  EmuError& error = *machine.error;
  error.kind = kind;
  error.line = line;
  error.other_line = other_line;
  error.block = emu.block;
  error.thread = thread_of(thread);
  if (other >= 0) error.other_thread = thread_of(other);
}

// A fiber lives as long as the launch and runs the kernel once for each block.
void fiber_main() {
  for (;;) {
    machine.entry(machine.arguments);
    Fiber& fiber = machine.fibers[emu.thread_id];
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
  emu.thread_id = id;
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

// The first thread of a range that is not as its first one (another state, or another line).
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

void run_warps() {
  const int warps = (machine.threads + WARP - 1) / WARP;
  for (int position = 0; position < warps && !failed(); ++position) {
    const int first = ordered(position, 0, warps) * WARP;
    const int rest = machine.threads - first;
    run_warp(first, rest < WARP ? rest : WARP);
  }
}

void run_block() {
  emu.first_epoch = ++emu.epoch;
  release(0, machine.threads);
  for (int barriers = 0; !failed(); ++barriers) {
    run_warps();
    if (failed()) return;
    const int other = odd_one_out(0, machine.threads);
    if (other >= 0) return diverged(0, other);
    if (machine.fibers[0].status == DONE) return;
    if (barriers == BARRIER_LIMIT) return report(EMU_TOO_LONG, 0, -1, machine.fibers[0].line, 0);
    ++emu.epoch;
    release(0, machine.threads);
  }
}

void run_grid() {
  const EmuDim grid = emu.grid_dim;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x && !failed(); ++x) {
        emu.block = {x, y, z};
        run_block();
      }
}

char* map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : (char*)memory;
}

}  // namespace

extern "C" {

EmuState emu;

void emu_fail(int kind, int parameter, long long index, long long limit, int line, int other) {
  report(kind, emu.thread_id, other, line, 0);
  machine.error->parameter = parameter;
  machine.error->index = index;
  machine.error->limit = limit;
  _longjmp(machine.scheduler, 1);
}

void emu_wait(EmuWait what, int line) {
  Fiber& fiber = machine.fibers[emu.thread_id];
  fiber.status = what == EMU_AT_BARRIER ? AT_BARRIER : AT_SHUFFLE;
  fiber.line = line;
  if (_setjmp(fiber.resume) == 0) _longjmp(machine.scheduler, 1);
}

// Two sets of slots, used in turn: a thread that runs ahead to the next shuffle does not overwrite what
// the rest of its warp has yet to read, and it cannot be two ahead.
void* emu_shuffle_slot() {
  const int turn = machine.fibers[emu.thread_id].shuffles++ & 1;
  return machine.slots[turn][emu.thread_id];
}

const void* emu_shuffle_peer(int id) {
  const int turn = (machine.fibers[emu.thread_id].shuffles - 1) & 1;
  return machine.slots[turn][id < machine.threads ? id : emu.thread_id];
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
  int buffer_count, shared_bytes, reverse;
  EmuDim grid, block;
};

// Runs the whole grid; `error->kind` says how it went. Returns 0, or -1 if memory ran out.
// One launch at a time: the caller holds a lock.
int emu_run(const EmuLaunch* launch, EmuError* error) {
  const int threads = int(launch->block.x * launch->block.y * launch->block.z);
  memset(error, 0, sizeof *error);
  memset(&emu, 0, sizeof emu);
  machine.entry = launch->entry;
  machine.arguments = launch->arguments;
  machine.error = error;
  machine.threads = threads;
  machine.reverse = launch->reverse;
  emu.block_dim = launch->block;
  emu.grid_dim = launch->grid;
  emu.buffers = launch->buffers;
  emu.buffer_count = launch->buffer_count;
  emu.shared_bytes = launch->shared_bytes;
  for (int id = 0; id < threads; ++id) {
    machine.fibers[id].entered = false;
    machine.fibers[id].shuffles = 0;  // a launch that failed leaves them apart
  }
  const size_t stack_bytes = threads * STACK_BYTES;
  const size_t shadow_bytes = (size_t)launch->shared_bytes * sizeof(EmuByte) + 1;
  const size_t shared_bytes = (size_t)launch->shared_bytes + 16;
  machine.stacks = map(stack_bytes);
  emu.shadow = (EmuByte*)map(shadow_bytes);
  emu.shared = (unsigned char*)map(shared_bytes);
  const bool mapped = machine.stacks && emu.shadow && emu.shared;
  if (mapped) run_grid();
  if (machine.stacks) munmap(machine.stacks, stack_bytes);
  if (emu.shadow) munmap(emu.shadow, shadow_bytes);
  if (emu.shared) munmap(emu.shared, shared_bytes);
  return mapped ? 0 : -1;
}
}
