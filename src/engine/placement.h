// Placement: where a run computes: which device a rank has, and which groups the ranks form.
#pragma once

#include <memory>

#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/device.h"

namespace blipft {

bool wants_cuda(const Config& config);
/// Before CUDA starts in this process: how many queues to the GPU it gets, where nobody has said so
/// (CUDA_DEVICE_MAX_CONNECTIONS). And before threads of the program that look up a host, as the watchdog's does: a variable that is
/// set may move the environment away from under whoever reads it.
void choose_gpu_queues(const Config& config, const World& world);
/// Throws AgreedError where this process is alone in MPI's world, but was started as one of several (by srun without PMIx,
/// torchrun, another MPI's mpirun), each of which would run alone; unless parallel.devices=1 asks for that.
void check_started_together(const Config& config, const World& world);
/// Before anything is read: throws UserError when this rank has no GPU that the program runs on, and wants one.
void check_device(const Config& config, const World& world);
std::unique_ptr<Device> make_device(const Config& config, const World& world);
/// Host memory that this process may still take: what the machine has available, within its control groups' limits.
int64_t available_host_memory();
/// Before page-locked memory is taken: throws UserError when `bytes` for each of this machine's ranks are more.
void check_host_memory(const Config& config, const World& world, int64_t bytes);
/// Cores of this machine that a rank may count as its own.
int64_t cores_of_a_rank(const World& world);
/// CPU threads that a rank computes with: parallel.threads, else OMP_NUM_THREADS, else its cores.
int64_t threads_of_a_rank(const Config& config, const World& world);
/// Ranks of each machine, 0: they differ. Called by all ranks.
int64_t ranks_of_each_machine(const World& world);
/// `node_ranks`: as ranks_of_each_machine() says.
GroupSizes group_sizes(const Config& config, int64_t ranks, int64_t node_ranks);
/// Of a plan for `ranks` ranks (0: as the config says); with `node_ranks` 0 a machine has as many as GPUs are here.
GroupSizes planned_groups(const Config& config, int64_t ranks, int64_t node_ranks);
std::unique_ptr<CommGroups> make_groups(const Config& config, const World& world, const GroupSizes& sizes,
                                        Device& device);

}  // namespace blipft
