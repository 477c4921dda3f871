// CudaOps: construction, workspace, and attention's entry points. The other methods are defined next to their kernels.
#include "cuda/cuda_ops.h"

#include "cuda/attention/attention.h"
#include "cuda/device/loaded_code.h"
#include "ops/ops_check.h"

namespace blipft {

CudaOps::CudaOps(Device& device, const std::string& cache_path, GemmEffort effort, bool tf32)
    : tf32_(tf32), side_(device.side_stream()), planner_((device.bind_thread(), cache_path), effort) {
  BLIPFT_CHECK(device.kind() == DeviceKind::cuda, "CUDA ops need a CUDA device, got ", device.name());
  int index = 0;
  BLIPFT_CUDA_CHECK(cudaGetDevice(&index));
  BLIPFT_CUDA_CHECK(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, index));
  BLIPFT_CUDA_CHECK(cudaDeviceGetAttribute(&shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  wgmma_ = loaded_code().architecture.has_wgmma();
  int major = 0, minor = 0;
  BLIPFT_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  BLIPFT_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  capability_ = 10 * major + minor;
  void* counters = nullptr;
  BLIPFT_CUDA_CHECK(cudaMalloc(&counters, 2 * kCounters * sizeof(unsigned)));
  counters_.reset(static_cast<unsigned*>(counters));
  BLIPFT_CUDA_CHECK(cudaMemset(counters, 0, 2 * kCounters * sizeof(unsigned)));
  // cudaMemset runs in the default stream, for which the kernels' streams do not wait.
  BLIPFT_CUDA_CHECK(cudaDeviceSynchronize());
}

void CudaOps::set_workspace(Tensor workspace) {
  check_workspace(workspace);
  BLIPFT_CHECK(reinterpret_cast<uintptr_t>(workspace.data) % 256 == 0, "the workspace must be 256-byte aligned");
  workspace_ = workspace;
}

char* CudaOps::workspace_of(Stream stream) const {
  if (stream.handle != side_.handle) return workspace_.as<char>();
  BLIPFT_CHECK(workspace_.bytes() >= 2 * kWorkspaceBytes, "ops in the side stream need a workspace of ",
               2 * kWorkspaceBytes, " bytes, there are ", workspace_.bytes());
  return workspace_.as<char>() + kWorkspaceBytes;
}

LaunchContext CudaOps::context(Stream stream) const {
  LaunchContext context;
  context.stream = static_cast<cudaStream_t>(stream.handle);
  context.sm_count = sm_count_;
  context.shared_bytes = shared_bytes_;
  context.wgmma = wgmma_;
  context.tf32 = tf32_;
  context.counters = counters_.get() + (stream.handle == side_.handle ? kCounters : 0);
  if (workspace_) {  // fills and casts at start-up need no workspace
    context.scratch = reinterpret_cast<float*>(workspace_of(stream) + kGemmWorkspaceBytes);
    context.scratch_bytes = kWorkspaceBytes - kGemmWorkspaceBytes;
  }
  return context;
}

void CudaOps::attention_forward(const AttentionForward& args, Stream stream) {
  check_args(args);
  launch_attention_forward(args, context(stream));
}

void CudaOps::attention_backward(const AttentionBackward& args, Stream stream) {
  check_args(args);
  launch_attention_backward(args, context(stream));
}

std::unique_ptr<Ops> make_cuda_ops(Device& device, const std::string& cache_path, const ProductSettings& products) {
  const GemmEffort effort = products.search == ProductSearch::thorough ? GemmEffort::thorough
                            : products.search == ProductSearch::quick  ? GemmEffort::quick
                                                                       : GemmEffort::heuristic;
  return std::make_unique<CudaOps>(device, cache_path, effort, products.tf32);
}

}  // namespace blipft
