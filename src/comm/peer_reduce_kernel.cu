// The kernel of PeerReduce.
#include "comm/peer_reduce_kernel.h"

#include <cuda_runtime.h>

#include "cuda/device/loaded_code.h"
#include "cuda/vector.cuh"

namespace blipft {

namespace {

using Signals = PeerSignals;
using Arguments = PeerReduceArguments;
constexpr int kThreads = 256;
constexpr int kSharedBytes = 192 << 10;    // pieces being copied
constexpr int kMaxStages = 12;

__device__ __forceinline__ void expect(unsigned long long* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait(unsigned long long* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred arrived;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 arrived, [%0], %1;\n"
      "@arrived bra through;\n"
      "bra again;\n"
      "through:\n"
      "}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy_in(void* to, const void* from, unsigned bytes, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void signal(unsigned* counter, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
/// Waits until the counter, which only increases (and wraps around), has reached `value`.
__device__ __forceinline__ void wait_for(const unsigned* counter, unsigned value) {
  unsigned seen;
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (static_cast<int>(seen - value) < 0);
}

/// Signals to all ranks that this rank's data are ready, and waits for all ranks' signals. One thread of each block.
__device__ __forceinline__ void meet(const Arguments& args, Signals* mine, unsigned call) {
  if (blockIdx.x == 0) {
    __threadfence_system();                // makes earlier writes of this stream visible before the signal
    for (int r = 0; r < args.ranks; ++r) {
      *const_cast<volatile int64_t*>(&args.signals[r]->offset[args.rank]) = args.offset;
      signal(&args.signals[r]->arrived[args.rank], call);
    }
  }
  for (int r = 0; r < args.ranks; ++r) wait_for(&mine->arrived[r], call);
}

/// Computes the addresses of the sources and of the destinations of the sum. Valid after meet().
template <int kSources>
__device__ __forceinline__ void find_parts(const char* (&source)[kSources], char* (&targets)[kMaxPeers],
                                           const Arguments& args, Signals* mine) {
#pragma unroll
  for (int k = 0; k < kSources; ++k) {
    if (k == args.ranks) {
      source[k] = args.shard;
      continue;
    }
    char* part = args.block[k] + *const_cast<volatile int64_t*>(&mine->offset[k]) + args.part;
    source[k] = part;
    if (!args.shard) targets[k] = part;
  }
  if (args.shard) targets[0] = args.shard;
}

/// Called by one thread of each block. In the last block, signals to all ranks that this rank is done, and waits for
/// all ranks' signals.
__device__ __forceinline__ void part_ways(const Arguments& args, Signals* mine, unsigned call) {
  __threadfence_system();                  // for the writes of the whole block
  if (atomicAdd(&mine->blocks, 1u) != gridDim.x - 1) return;
  mine->blocks = 0;
  __threadfence_system();
  for (int r = 0; r < args.ranks; ++r) signal(&args.signals[r]->done[args.rank], call);
  for (int r = 0; r < args.ranks; ++r) wait_for(&mine->done[r], call);
  mine->call = call;
}

template <class T>
__device__ __forceinline__ void add_pack(float (&sum)[kVector<T>], const T* from) {
  // load() needs fewer instructions, but has not been timed here, in parallel to matrix products on several GPUs.
  const auto pack = load_pack<kVector<T>>(from);
  float part[kVector<T>];
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) part[j] = to_float(pack.v[j]);
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) sum[j] += part[j];
}

/// Adds the sources (this rank's part of all tensors, and the shard if it accumulates) and writes the sum to the shard,
/// or to this part on all ranks. Block b processes pieces b, b + gridDim.x, ...; piece p of all sources uses stage
/// (p / gridDim.x) % stages.
template <class T, int kSources>
__global__ void __launch_bounds__(kThreads, 1) peer_reduce_kernel(const __grid_constant__ Arguments args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // otherwise empty, see peer_reduce_runs_here
  constexpr int kPiece = kSources <= 5 ? 8192 : 4096;
  constexpr int kStages =
      kSharedBytes / (kPiece * kSources) < kMaxStages ? kSharedBytes / (kPiece * kSources) : kMaxStages;
  extern __shared__ __align__(128) char stages[];
  __shared__ __align__(8) unsigned long long arrived[kStages];
  __shared__ char* targets[kMaxPeers];
  const int target_count = args.shard ? 1 : args.ranks;
  const char* source[kSources];            // set by the first thread
  Signals* mine = args.signals[args.rank];
  const unsigned call = *reinterpret_cast<volatile unsigned*>(&mine->call) + 1;
  const int64_t all = (args.bytes + kPiece - 1) / kPiece;
  const int64_t pieces = all > blockIdx.x ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  const auto offset_of = [&](int64_t i) { return (blockIdx.x + i * gridDim.x) * kPiece; };
  const auto length_of = [&](int64_t i) {
    return static_cast<int>(min(static_cast<int64_t>(kPiece), args.bytes - offset_of(i)));
  };
  const auto fetch = [&](int64_t i) {
    const int stage = static_cast<int>(i % kStages), length = length_of(i);
    expect(&arrived[stage], static_cast<unsigned>(length * kSources));
#pragma unroll
    for (int k = 0; k < kSources; ++k)
      copy_in(stages + (stage * kSources + k) * kPiece, source[k] + offset_of(i), static_cast<unsigned>(length),
              &arrived[stage]);
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&arrived[s])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    meet(args, mine, call);
    find_parts(source, targets, args, mine);
    asm volatile("fence.proxy.async;" ::: "memory");  // bulk copies see the data that the waits made visible
    for (int64_t i = 0; i < pieces && i < kStages; ++i) fetch(i);
  }
  __syncthreads();
  for (int64_t i = 0; i < pieces; ++i) {
    const int stage = static_cast<int>(i % kStages), length = length_of(i);
    wait(&arrived[stage], static_cast<unsigned>(i / kStages) & 1);
    const char* from = stages + stage * kSources * kPiece;
    for (int at = static_cast<int>(threadIdx.x) * 16; at < length; at += kThreads * 16) {
      float sum[kVector<T>] = {};
#pragma unroll
      for (int k = 0; k < kSources; ++k) add_pack(sum, reinterpret_cast<const T*>(from + k * kPiece + at));
      for (int t = 0; t < target_count; ++t) store(reinterpret_cast<T*>(targets[t] + offset_of(i) + at), sum);
    }
    __syncthreads();                       // all threads have read the stage
    if (threadIdx.x == 0 && i + kStages < pieces) fetch(i + kStages);
  }
  __threadfence_system();                  // orders writes to other ranks before the signal
  __syncthreads();
  if (threadIdx.x == 0) part_ways(args, mine, call);
#endif
}

template <class T, int kSources>
cudaError_t launch_kernel(const Arguments& args, int blocks, cudaStream_t stream) {
  const auto kernel = peer_reduce_kernel<T, kSources>;
  const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (allowed != cudaSuccess) return allowed;
  kernel<<<static_cast<unsigned>(blocks), kThreads, kSharedBytes, stream>>>(args);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_sources(const Arguments& args, int blocks, cudaStream_t stream) {
  switch (args.sources()) {
    case 2: return launch_kernel<T, 2>(args, blocks, stream);
    case 3: return launch_kernel<T, 3>(args, blocks, stream);
    case 4: return launch_kernel<T, 4>(args, blocks, stream);
    case 5: return launch_kernel<T, 5>(args, blocks, stream);
    case 6: return launch_kernel<T, 6>(args, blocks, stream);
    case 7: return launch_kernel<T, 7>(args, blocks, stream);
    case 8: return launch_kernel<T, 8>(args, blocks, stream);
    case 9: return launch_kernel<T, 9>(args, blocks, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

bool peer_reduce_runs_here() {
  int device = 0, shared = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known && shared >= kSharedBytes + (4 << 10) && loaded_code().architecture.number >= 90;
}

cudaError_t launch_peer_reduce(const PeerReduceArguments& args, bool bf16, int blocks, cudaStream_t stream) {
  return bf16 ? launch_sources<__nv_bfloat16>(args, blocks, stream) : launch_sources<float>(args, blocks, stream);
}

}  // namespace blipft
