// Optimizations of captured graphs; see graph_rewrite.h.
#include "cuda/device/graph_rewrite.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "cuda/device/cuda_check.h"

namespace blipft {
namespace {

constexpr int kMaxSlots = 4;

/// Destinations of one timestamp.
struct Slots {
  int64_t* at[kMaxSlots];
  int count;
};

__global__ void store_time(Slots slots) {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  for (int i = 0; i < slots.count; ++i) *slots.at[i] = static_cast<int64_t>(ns);
}

constexpr int kFillThreads = 256;

/// A two-dimensional memset: rows of `width` bytes, `pitch` bytes apart; `value` repeats every 4 bytes.
struct Fill {
  unsigned char* memory;
  uint32_t value;
  int64_t width, height, pitch;
};

__global__ void __launch_bounds__(kFillThreads) graph_fill_kernel(Fill fill) {
  const int64_t first = int64_t{blockIdx.x} * kFillThreads + threadIdx.x, stride = int64_t{gridDim.x} * kFillThreads;
  const uint4 pack{fill.value, fill.value, fill.value, fill.value};
  for (int64_t row = blockIdx.y; row < fill.height; row += gridDim.y) {
    unsigned char* memory = fill.memory + row * fill.pitch;
    // The value repeats from the start of the row. Aligned 16-byte stores are possible if they start at a multiple of 4
    // bytes in the row or if all bytes of the value are equal.
    const int64_t head = std::min<int64_t>(fill.width, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(memory) & 15));
    const bool in_phase = head % 4 == 0 || (fill.value & 0xffu) * 0x01010101u == fill.value;
    const int64_t packs = in_phase ? (fill.width - head) / 16 : 0, tail = head + 16 * packs;
    for (int64_t i = first; i < packs; i += stride) *reinterpret_cast<uint4*>(memory + head + 16 * i) = pack;
    for (int64_t i = first; i < fill.width; i += stride)
      if (i < head || i >= tail) memory[i] = static_cast<unsigned char>(fill.value >> (8 * (i % 4)));
  }
}

// CUDA's neighbour lists with edge data: before CUDA 13.0 the names without suffix are functions without edge data.
#if CUDART_VERSION >= 13000
constexpr auto kDependencies = &cudaGraphNodeGetDependencies;
constexpr auto kDependents = &cudaGraphNodeGetDependentNodes;
constexpr auto kAddDependencies = &cudaGraphAddDependencies;
#else
constexpr auto kDependencies = &cudaGraphNodeGetDependencies_v2;
constexpr auto kDependents = &cudaGraphNodeGetDependentNodes_v2;
constexpr auto kAddDependencies = &cudaGraphAddDependencies_v2;
#endif

/// The neighbours of a node, with the data of the connecting edges.
struct Neighbours {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;
};

/// `list` is one of CUDA's two functions that list a node's neighbours.
template <class List>
Neighbours neighbours(const List& list, cudaGraphNode_t node) {
  size_t count = 0;
  BLIPFT_CUDA_CHECK(list(node, nullptr, nullptr, &count));
  Neighbours found{std::vector<cudaGraphNode_t>(count), std::vector<cudaGraphEdgeData>(count)};
  if (count > 0) BLIPFT_CUDA_CHECK(list(node, found.nodes.data(), found.edges.data(), &count));
  return found;
}

Neighbours before(cudaGraphNode_t node) { return neighbours(kDependencies, node); }
Neighbours after(cudaGraphNode_t node) { return neighbours(kDependents, node); }

void connect_after(cudaGraph_t graph, cudaGraphNode_t node, const Neighbours& later) {
  const std::vector<cudaGraphNode_t> from(later.nodes.size(), node);
  if (!from.empty())
    BLIPFT_CUDA_CHECK(
        kAddDependencies(graph, from.data(), later.nodes.data(), later.edges.data(), from.size()));
}

cudaGraphNodeType type_of(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  BLIPFT_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
  return type;
}

/// Replaces memset node `node` by an equivalent kernel with the priority of the next kernel.
void replace_memset(cudaGraph_t graph, cudaGraphNode_t node) {
  cudaMemsetParams memset{};
  BLIPFT_CUDA_CHECK(cudaGraphMemsetNodeGetParams(node, &memset));
  const uint32_t value = memset.elementSize == 1   ? (memset.value & 0xffu) * 0x01010101u
                         : memset.elementSize == 2 ? (memset.value & 0xffffu) * 0x00010001u
                                                   : memset.value;
  Fill fill{static_cast<unsigned char*>(memset.dst), value, static_cast<int64_t>(memset.width * memset.elementSize),
            static_cast<int64_t>(memset.height), static_cast<int64_t>(memset.pitch)};
  void* arguments[] = {&fill};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(graph_fill_kernel);
  kernel.gridDim = dim3(static_cast<unsigned>(std::clamp<int64_t>(fill.width / (16 * kFillThreads), 1, 1024)),
                        static_cast<unsigned>(std::clamp<int64_t>(fill.height, 1, 64)));
  kernel.blockDim = dim3(kFillThreads);
  kernel.kernelParams = arguments;
  const Neighbours earlier = before(node), later = after(node);
  cudaGraphNode_t replacement = nullptr;
  BLIPFT_CUDA_CHECK(cudaGraphAddKernelNode(&replacement, graph, nullptr, 0, &kernel));
  const std::vector<cudaGraphNode_t> to(earlier.nodes.size(), replacement);
  if (!to.empty())
    BLIPFT_CUDA_CHECK(
        kAddDependencies(graph, earlier.nodes.data(), to.data(), earlier.edges.data(), to.size()));
  connect_after(graph, replacement, later);
  for (cudaGraphNode_t next : later.nodes) {
    if (type_of(next) != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeAttrValue priority{};
    BLIPFT_CUDA_CHECK(cudaGraphKernelNodeGetAttribute(next, cudaLaunchAttributePriority, &priority));
    BLIPFT_CUDA_CHECK(cudaGraphKernelNodeSetAttribute(replacement, cudaLaunchAttributePriority, &priority));
    break;
  }
  BLIPFT_CUDA_CHECK(cudaGraphDestroyNode(node));
}

/// Returns true if the node is a timestamp kernel, and its parameters and destinations.
bool reads_clock(cudaGraphNode_t node, cudaKernelNodeParams& params, Slots& slots) {
  if (type_of(node) != cudaGraphNodeTypeKernel) return false;
  if (cudaGraphKernelNodeGetParams(node, &params) != cudaSuccess) {
    (void)cudaGetLastError();  // a library's kernel that is unknown to this runtime
    return false;
  }
  if (params.func != reinterpret_cast<void*>(store_time)) return false;
  slots = *static_cast<const Slots*>(params.kernelParams[0]);
  return true;
}

/// If `node` is a timestamp kernel, merges into it the timestamp kernels that depend only on it, and adds them to
/// `gone`.
void join_timestamps(cudaGraph_t graph, cudaGraphNode_t node, std::unordered_set<cudaGraphNode_t>& gone) {
  cudaKernelNodeParams params{}, next_params{};
  Slots slots{}, next_slots{};
  if (!reads_clock(node, params, slots)) return;
  const int own = slots.count;
  for (bool found = true; found;) {
    found = false;
    for (cudaGraphNode_t next : after(node).nodes) {
      if (!reads_clock(next, next_params, next_slots) || slots.count + next_slots.count > kMaxSlots) continue;
      if (before(next).nodes.size() != 1) continue;
      for (int i = 0; i < next_slots.count; ++i) slots.at[slots.count++] = next_slots.at[i];
      Neighbours later = after(next);
      const std::vector<cudaGraphNode_t> known = after(node).nodes;
      for (size_t i = later.nodes.size(); i-- > 0;) {
        if (std::find(known.begin(), known.end(), later.nodes[i]) == known.end()) continue;
        later.nodes.erase(later.nodes.begin() + static_cast<std::ptrdiff_t>(i));
        later.edges.erase(later.edges.begin() + static_cast<std::ptrdiff_t>(i));
      }
      connect_after(graph, node, later);
      BLIPFT_CUDA_CHECK(cudaGraphDestroyNode(next));
      gone.insert(next);
      found = true;
      break;
    }
  }
  if (slots.count == own) return;
  void* arguments[] = {&slots};
  params.kernelParams = arguments;
  params.extra = nullptr;
  BLIPFT_CUDA_CHECK(cudaGraphKernelNodeSetParams(node, &params));
}

}  // namespace

void launch_timestamp(int64_t* slot, cudaStream_t stream) {
  store_time<<<1, 1, 0, stream>>>(Slots{{slot}, 1});
  BLIPFT_CUDA_LAUNCHED("store_time");
}

void rewrite_graph(cudaGraph_t graph) {
  size_t count = 0;
  BLIPFT_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  BLIPFT_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::unordered_set<cudaGraphNode_t> gone;
  for (cudaGraphNode_t node : nodes) {
    if (type_of(node) != cudaGraphNodeTypeMemset) continue;
    replace_memset(graph, node);
    gone.insert(node);
  }
  for (cudaGraphNode_t node : nodes)
    if (gone.count(node) == 0) join_timestamps(graph, node, gone);
}

}  // namespace blipft
