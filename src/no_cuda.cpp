// The entry points of the CUDA backend in a build without CUDA. They report that CUDA is missing.
#include "blipft/comm.h"
#include "blipft/device.h"
#include "blipft/error.h"
#include "blipft/monitor.h"
#include "blipft/ops.h"

#if !defined(BLIPFT_CUDA)

namespace blipft {
namespace {

constexpr const char* kNoCuda =
    "this blipft was built without CUDA; install the CUDA toolkit and build with `make CUDA=1`, or run with "
    "parallel.device=cpu";

}  // namespace

std::unique_ptr<Device> make_cuda_device(int) { throw UserError(kNoCuda); }
void check_cuda_device(int) { throw UserError(kNoCuda); }
int cuda_device_count() { return 0; }
bool ranks_share_gpus() { return false; }
int cuda_device_of(int64_t local_rank) { return static_cast<int>(local_rank); }
std::unique_ptr<Ops> make_cuda_ops(Device&, const std::string&, const ProductSettings&) { throw UserError(kNoCuda); }
std::unique_ptr<Comm> make_nccl_comm(const World&, Device&, int64_t) { throw UserError(kNoCuda); }
LibraryVersion nccl_library() { return {"NCCL", "", ""}; }
std::unique_ptr<DeviceMonitor> make_device_monitor(int) { return make_host_monitor(); }
std::map<std::string, std::string> cuda_versions() { return {}; }
std::unique_ptr<KernelTracer> make_kernel_tracer() { throw UserError(kNoCuda); }

}  // namespace blipft

#endif
