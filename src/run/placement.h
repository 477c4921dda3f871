// Placement: where a run computes: which device a rank has, and which groups the ranks form.
#pragma once

#include <memory>

#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/device.h"

namespace blipft {

bool wants_cuda(const Config& config);
/// Before anything is read: throws UserError when this rank has no GPU that the program runs on, and wants one.
void check_device(const Config& config, const World& world);
std::unique_ptr<Device> make_device(const Config& config, const World& world);
/// Cores of this machine that a rank may count as its own.
int64_t cores_of_a_rank(const World& world);
/// Ranks of each machine, 0: they differ. Called by all ranks.
int64_t ranks_of_each_machine(const World& world);
/// `node_ranks`: as ranks_of_each_machine() says.
GroupSizes group_sizes(const Config& config, int64_t ranks, int64_t node_ranks);
std::unique_ptr<CommGroups> make_groups(const Config& config, const World& world, const GroupSizes& sizes,
                                        Device& device);

}  // namespace blipft
