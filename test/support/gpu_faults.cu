// Injects faults of GPUs and of NCCL into a running program, as a preloaded library. The program must link both as shared
// libraries.
//
//   nvcc -shared -cudart shared -Xcompiler -fPIC -arch native -o gpu_faults.so test/support/gpu_faults.cu -ldl
//   FAULT=gpu|nccl FAULT_FILE=PATH LD_PRELOAD=gpu_faults.so blipft ...
//
// Once a file exists at PATH: with gpu, the stream of each launched graph first writes to address 16; with nccl, every
// communicator reports an asynchronous error.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

bool is_due(const char* fault) {
  const char* const chosen = std::getenv("FAULT");
  const char* const file = std::getenv("FAULT_FILE");
  return chosen && file && std::strcmp(chosen, fault) == 0 && access(file, F_OK) == 0;
}

__global__ void write_to_nowhere() { *reinterpret_cast<volatile int*>(16) = 1; }

template <class Function>
Function real(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// This function has another name in C++ because the header also declares an overload of cudaGraphLaunch.
extern "C" cudaError_t launch_graph(cudaGraphExec_t graph, cudaStream_t stream) __asm__("cudaGraphLaunch");

extern "C" cudaError_t launch_graph(cudaGraphExec_t graph, cudaStream_t stream) {
  if (is_due("gpu")) write_to_nowhere<<<1, 1, 0, stream>>>();
  return real(&launch_graph, "cudaGraphLaunch")(graph, stream);
}

extern "C" ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const ncclResult_t status = real(&ncclCommGetAsyncError, "ncclCommGetAsyncError")(comm, result);
  if (is_due("nccl")) *result = ncclRemoteError;
  return status;
}
