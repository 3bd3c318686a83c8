// emulate.h: runs generated CUDA text on a CPU, one fiber a GPU thread, so that the very text that NVRTC compiles is checked where there is
// no GPU. Covers what the skeletons use: shuffles, warp and block barriers, shared memory, read-only loads (alignment is checked), all
// storage dtypes. Blocks run one after another. A barrier that not all threads reach, or a shuffle that not all lanes join, ends the run.
#pragma once
#include <math.h>        // no C++ headers: they would take most of a kernel's compile time
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define SWEEP_SHARED(NAME) unsigned* NAME = emulator.shared

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class To, class From> To bit_cast(From x) { static_assert(sizeof(To) == sizeof(From)); To y; memcpy(&y, &x, sizeof y); return y; }
inline unsigned __float_as_uint(float x) { return bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return bit_cast<float>(x); }
inline double __longlong_as_double(long long x) { return bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return bit_cast<long long>(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return ::fma(x, y, z); }
template <class T> T __ldg(const T* p) {
  if ((size_t)p % sizeof(T)) { fprintf(stderr, "misaligned load of %d bytes\n", (int)sizeof(T)); abort(); }
  return *p;
}

struct Index { int x = 0; };
inline Index threadIdx, blockIdx, blockDim, gridDim;

#ifdef __x86_64__
// Saves the callee-saved registers on this stack, goes on with the other one.
extern "C" void emulate_switch(void** from, void* to);
asm(R"(
.text
.type emulate_switch, @function
emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
struct Context {
  void* sp = nullptr;
  void start(char* stack, size_t size, void (*entry)()) {
    size_t top = ((size_t)stack + size) & ~(size_t)15;
    void** p = (void**)top;
    *--p = nullptr;
    *--p = (void*)entry;
    for (int i = 0; i < 6; i++) *--p = nullptr;
    sp = p;
  }
  void go(Context& to) { emulate_switch(&sp, to.sp); }
};
#else
struct Context {
  ucontext_t c;
  void start(char* stack, size_t size, void (*entry)()) {
    getcontext(&c);
    c.uc_stack.ss_sp = stack;
    c.uc_stack.ss_size = size;
    c.uc_link = nullptr;
    makecontext(&c, entry, 0);
  }
  void go(Context& to) { swapcontext(&c, &to.c); }
};
#endif

struct Emulator {
  static constexpr int kThreads = 1024, kStack = 1 << 17;
  Context fibers[kThreads];
  char* stacks[kThreads] = {};
  char done[kThreads];
  int warp_arrived[32], warp_phase[kThreads], block_phase[kThreads];
  unsigned* shared = nullptr;
  int block_arrived = 0, current = 0, threads = 0;
  Context host;
  void (*body)(const void*) = nullptr;                   // the kernel and its arguments, as a lambda
  const void* argument = nullptr;
  unsigned long long exchange[32][32];

  bool next(int& i) {                                    // the next unfinished fiber after the current one
    for (int k = 1; k <= threads; k++)
      if (!done[i = (current + k) % threads]) return true;
    return false;
  }
  void yield() {
    const int me = current;
    int to;
    if (!next(to) || to == me) return;
    current = threadIdx.x = to;
    fibers[me].go(fibers[to]);
    current = threadIdx.x = me;
  }
  void wait(const int& arrived, int wanted) {
    for (long spin = 0; arrived < wanted; yield())
      if (++spin > 100000) { fprintf(stderr, "deadlock: a barrier that not all threads reach\n"); abort(); }
  }
  void warp_barrier() { const int w = current / 32, k = ++warp_phase[current]; warp_arrived[w]++; wait(warp_arrived[w], 32 * k); }
  void block_barrier() { const int k = ++block_phase[current]; block_arrived++; wait(block_arrived, threads * k); }
  template <class F> void launch(int grid, int block, int shared_bytes, const F& kernel) {
    argument = &kernel;
    body = [](const void* f) { (*(const F*)f)(); };
    run(grid, block, shared_bytes);
  }
  void run(int grid, int block, int shared_bytes);
};
inline Emulator emulator;

inline void fiber_main() {
  emulator.body(emulator.argument);
  const int me = emulator.current;
  emulator.done[me] = 1;
  int to;
  if (emulator.next(to)) { emulator.current = threadIdx.x = to; emulator.fibers[me].go(emulator.fibers[to]); }
  emulator.fibers[me].go(emulator.host);
}
inline void Emulator::run(int grid, int block, int shared_bytes) {
  threads = blockDim.x = block;
  gridDim.x = grid;
  for (int i = 0; i < block; i++)
    if (!stacks[i]) stacks[i] = (char*)malloc(kStack);
  const int words = shared_bytes / 4 + 4;
  shared = (unsigned*)aligned_alloc(64, (words * 4 + 63) / 64 * 64);
  for (int x = 0; x < grid; x++) {
    blockIdx.x = x;
    for (int i = 0; i < words; i++) shared[i] = 0x7fc0dead;
    memset(done, 0, sizeof done);
    memset(warp_arrived, 0, sizeof warp_arrived);
    memset(warp_phase, 0, sizeof warp_phase);
    memset(block_phase, 0, sizeof block_phase);
    block_arrived = 0;
    for (int i = 0; i < block; i++) fibers[i].start(stacks[i], kStack, fiber_main);
    current = threadIdx.x = 0;
    host.go(fibers[0]);
  }
  free(shared);
}
inline void __syncwarp() { emulator.warp_barrier(); }
inline void __syncthreads() { emulator.block_barrier(); }
template <class T> T __shfl_xor_sync(unsigned, T x, int o) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned long long b = 0;
  memcpy(&b, &x, sizeof x);
  emulator.exchange[w][lane] = b;
  emulator.warp_barrier();
  T y;
  memcpy(&y, &emulator.exchange[w][lane ^ o], sizeof y);
  emulator.warp_barrier();
  return y;
}

// ---- storage dtypes
struct __nv_bfloat16 { unsigned short x; };
struct __half { unsigned short x; };
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  if (f != f) return {0x7fff};
  unsigned u = __float_as_uint(f);
  u += 0x7fff + (u >> 16 & 1);
  return {(unsigned short)(u >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.x; }
inline float __half2float(__half x) { return (float)bit_cast<_Float16>(x.x); }
inline __half __float2half_rn(float f) { return {bit_cast<unsigned short>((_Float16)f)}; }
inline __half __ushort_as_half(unsigned short x) { return {x}; }
inline unsigned short __half_as_ushort(__half x) { return x.x; }
