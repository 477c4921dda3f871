// Choosing the GPU of a plan; see planned_gpu.h.
#include "plan/planned_gpu.h"

#include <memory>

#include "blipft/device.h"

namespace blipft {

PlannedGpu planned_gpu(double gib) {
  if (gib > 0) return {static_cast<int64_t>(gib * (int64_t{1} << 30)), "--gpu-memory"};
  if (cuda_device_count() > 0) {
    const std::unique_ptr<Device> device = make_cuda_device(0);
    return {device->memory().total, device->name(), rates_of(device->name())};
  }
  return {int64_t{143771} << 20, "an H200, taken because no GPU is here; --gpu-memory GiB names another size"};
}

}  // namespace blipft
