// Where a run computes; see placement.h.
#include "run/placement.h"

#include <algorithm>

#include "blipft/error.h"

namespace blipft {

bool wants_cuda(const Config& config) {
  if (config.parallel.device == "auto") return cuda_device_count() > 0;
  return config.parallel.device == "cuda";
}

void check_device(const Config& config, const World& world) {
  if (!wants_cuda(config)) return;
  BLIPFT_USER_CHECK(world.local_rank() < cuda_device_count() || cuda_device_count() == 0,
                    place_of(config, "parallel.devices"), ": ", world.local_size(), " ranks on ", world.host(),
                    ", which has ", cuda_device_count(), " GPUs; start one rank a GPU, or use parallel.device=cpu");
  check_cuda_device(static_cast<int>(world.local_rank()));
}

int64_t cores_of_a_rank(const World& world) {
  return std::max<int64_t>(1, world.local_cores() / world.local_size());
}

std::unique_ptr<Device> make_device(const Config& config, const World& world) {
  if (wants_cuda(config)) return make_cuda_device(static_cast<int>(world.local_rank()));
  return make_cpu_device(
      static_cast<int>(config.parallel.threads > 0 ? config.parallel.threads : cores_of_a_rank(world)));
}

std::unique_ptr<CommGroups> make_groups(const Config& config, const World& world, const GroupSizes& sizes,
                                        Device& device) {
  return std::make_unique<CommGroups>(world, sizes, device, [&](const World& ranks, bool scalars) {
    if (device.kind() != DeviceKind::cuda) return make_mpi_comm(ranks);
    // One thread block moves a few numbers as fast as many, and takes little memory for its buffers.
    return make_nccl_comm(ranks, device, scalars ? 1 : config.parallel.nccl_max_ctas);
  });
}

int64_t ranks_of_each_machine(const World& world) {
  const int64_t most = world.max(world.local_size()), least = -world.max(-world.local_size());
  return most == least ? most : 0;
}

GroupSizes group_sizes(const Config& config, int64_t ranks, int64_t node_ranks) {
  const int64_t shard = shard_group_size(config, ranks, node_ranks);
  return {shard, ranks / shard};
}

}  // namespace blipft
