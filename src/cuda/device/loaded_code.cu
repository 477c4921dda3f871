// Detection of the loaded code; see loaded_code.h. One kernel represents all, which are compiled for the same list.
#include "cuda/device/loaded_code.h"

#include <cuda_runtime.h>

#include "cuda/device/cuda_check.h"

namespace blipft {
namespace {

__device__ int loaded_number, loaded_suffix;

/// Stores the architecture that it was compiled for. The driver chooses among several, so only the kernel knows.
__global__ void tell_architecture_kernel() {
#if defined(__CUDA_ARCH__)
  loaded_number = __CUDA_ARCH__ / 10;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_SPECIFIC__)
  loaded_suffix = 'a';
#elif defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
  loaded_suffix = 'f';
#else
  loaded_suffix = 0;
#endif
#endif
}

}  // namespace

const std::vector<Architecture>& built_architectures() {
  static const std::vector<Architecture> built = parse_architectures(BLIPFT_CUDA_ARCH);
  return built;
}

LoadedCode loaded_code() {
  cudaFuncAttributes kernel{};
  if (const cudaError_t status = cudaFuncGetAttributes(&kernel, tell_architecture_kernel); status != cudaSuccess) {
    (void)cudaGetLastError();
    throw UserError(concat("the driver cannot use this program's code, built for CUDA_ARCH=\"", BLIPFT_CUDA_ARCH,
                           "\": ", cudaGetErrorName(status), " (", cudaGetErrorString(status),
                           "); build for this GPU's own compute capability, or update the driver"));
  }
  tell_architecture_kernel<<<1, 1>>>();
  BLIPFT_CUDA_LAUNCHED("tell_architecture_kernel");
  int number = 0, suffix = 0;
  BLIPFT_CUDA_CHECK(cudaMemcpyFromSymbol(&number, loaded_number, sizeof number));  // waits for the kernel
  BLIPFT_CUDA_CHECK(cudaMemcpyFromSymbol(&suffix, loaded_suffix, sizeof suffix));
  return {{number, static_cast<char>(suffix)}, kernel.binaryVersion != kernel.ptxVersion};
}

}  // namespace blipft
