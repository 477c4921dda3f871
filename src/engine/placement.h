// Placement: the device of each rank and the groups that the ranks form.
#pragma once

#include <memory>

#include "blipft/comm.h"
#include "blipft/engine_settings.h"
#include "blipft/device.h"

namespace blipft {

bool wants_cuda(const EngineSettings& config);
/// Sets the number of queues to the GPU (CUDA_DEVICE_MAX_CONNECTIONS) unless it is already set. To be called before
/// CUDA starts in this process, and before other threads such as the watchdog's look up a host: setting a variable may
/// move the environment while another thread reads it.
void choose_gpu_queues(const EngineSettings& config, const World& world);
/// Throws AgreedError if MPI's world has one process, but the environment shows that several were started (by srun
/// without PMIx, torchrun, another MPI's mpirun): each would run alone. With parallel.devices=1 that is allowed.
void check_started_together(const EngineSettings& config, const World& world);
/// Throws UserError if the config requires a GPU and this rank has no supported one. To be called before files are
/// read.
void check_device(const EngineSettings& config, const World& world);
std::unique_ptr<Device> make_device(const EngineSettings& config, const World& world);
/// Returns the user's file of the algorithms of matrix products on GPUs; "" without a home.
std::string gemm_table_of_user();
/// Returns the operations of `device`. `gemm_table`: the file of the algorithms of products. `times_products`: they search
/// for the fastest, as parallel.gemm_search says.
std::unique_ptr<Ops> make_ops(const EngineSettings& config, Device& device, const std::string& gemm_table,
                              bool times_products = true);
/// Returns the bytes of host memory that are available on this machine, within the limits of this process's cgroups.
int64_t available_host_memory();
/// Throws UserError if `bytes` of page-locked memory for each of this machine's ranks exceed the available host memory.
void check_host_memory(const EngineSettings& config, const World& world, int64_t bytes);
/// Returns the number of this machine's cores divided by its number of ranks, at least 1.
int64_t cores_of_a_rank(const World& world);
/// Returns the number of CPU threads of a rank: parallel.threads, else OMP_NUM_THREADS, else cores_of_a_rank().
int64_t threads_of_a_rank(const EngineSettings& config, const World& world);
/// Returns the number of ranks on each machine, or 0 if it differs. All ranks must call it.
int64_t ranks_of_each_machine(const World& world);
/// Returns the ranks of a shard group, by parallel.shard_ranks, of `ranks` ranks in all; they divide them. `node_ranks`: as
/// ranks_of_each_machine(). Throws UserError that names the nearest divisors.
int64_t shard_group_size(const EngineSettings& config, int64_t ranks, int64_t node_ranks);
/// `node_ranks`: as ranks_of_each_machine().
GroupSizes group_sizes(const EngineSettings& config, int64_t ranks, int64_t node_ranks);
/// Returns the ranks of each machine in a plan; `node_ranks` 0: as many as this machine has GPUs.
int64_t planned_node_ranks(int64_t ranks, int64_t node_ranks);
/// Returns the groups of a plan for `ranks` ranks (0: parallel.devices). `node_ranks`: as planned_node_ranks().
GroupSizes planned_groups(const EngineSettings& config, int64_t ranks, int64_t node_ranks);
std::unique_ptr<CommGroups> make_groups(const EngineSettings& config, const World& world, const GroupSizes& sizes,
                                        Device& device);

}  // namespace blipft
