// Checks of CUDA and cuBLASLt calls: a failed call throws an Error with the expression, the source location and the
// vendor's text.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <source_location>

#include "blipft/error.h"

namespace blipft {

inline void check_cuda(cudaError_t status, const char* expression, std::source_location location) {
  if (status == cudaSuccess) [[likely]] return;
  (void)cudaGetLastError();  // so that a non-sticky error is not reported again by a later call
  throw Error(concat("CUDA call failed: ", expression, " at ", location.file_name(), ":", location.line(), ": ",
                     cudaGetErrorName(status), " (", cudaGetErrorString(status), ")"),
              location);
}

inline void check_cublas(cublasStatus_t status, const char* expression, std::source_location location) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]] return;
  throw Error(concat("cuBLASLt call failed: ", expression, " at ", location.file_name(), ":", location.line(), ": ",
                     cublasLtGetStatusName(status), " (", cublasLtGetStatusString(status), ")"),
              location);
}

}  // namespace blipft

/// Evaluates a CUDA runtime call and throws Error if it fails.
#define BLIPFT_CUDA_CHECK(expression) ::blipft::check_cuda((expression), #expression, std::source_location::current())
/// Throws Error if the preceding kernel launch failed.
#define BLIPFT_CUDA_LAUNCHED(kernel) \
  ::blipft::check_cuda(cudaGetLastError(), "launch of " kernel, std::source_location::current())
/// Evaluates a cuBLASLt call and throws Error if it fails.
#define BLIPFT_CUBLAS_CHECK(expression) \
  ::blipft::check_cublas((expression), #expression, std::source_location::current())
