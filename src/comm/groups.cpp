// Creates the groups of a run.
#include "blipft/comm.h"

namespace blipft {

CommGroups::CommGroups(const World& world, const GroupSizes& sizes, Device& device, const MakeComm& make) {
  BLIPFT_CHECK(world.size() == sizes.all(), "groups of ", sizes.shard, " and ", sizes.replicate, " of ", world.size(),
               " ranks");
  const auto comm_of = [&](const World& ranks, bool scalars) {
    return ranks.size() == 1 ? make_self_comm(device) : make(ranks, scalars);
  };
  // With several shard groups, the communicator of all ranks only sums losses, label counts and norms.
  all_ = comm_of(world, sizes.hybrid());
  const int64_t index = world.machine_order();
  shard_group_ = index / sizes.shard;
  replicate_group_ = index % sizes.shard;
  shard_world_ = world.split(shard_group_, index);
  replicate_world_ = world.split(replicate_group_, index);
  if (sizes.hybrid()) shard_ = comm_of(*shard_world_, false);
  replicate_ = comm_of(*replicate_world_, false);
}

void CommGroups::expose(const Tensor& block, bool gathers, bool reductions) {
  if (!block) return;
  const Groups groups = this->groups();
  if ((gathers || reductions) && groups.shard->size() > 1) groups.shard->expose(block, gathers, reductions);
  if (reductions && groups.hybrid()) groups.replicate->expose(block, false, true);
}

void CommGroups::withdraw() {
  groups().shard->withdraw();
  replicate_->withdraw();
}

std::string CommGroups::failure() const {
  for (const Comm* comm : {all_.get(), shard_.get(), replicate_.get()})
    if (const std::string failure = comm ? comm->failure() : ""; !failure.empty()) return failure;
  return {};
}

int64_t CommGroups::device_bytes() const {
  return all_->device_bytes() + (shard_ ? shard_->device_bytes() : 0) + replicate_->device_bytes();
}

}  // namespace blipft
