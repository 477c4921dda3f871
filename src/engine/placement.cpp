// Devices and groups of ranks; see placement.h.
#include "engine/placement.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/memory_text.h"
#include "blipft/error.h"
#include "blipft/strategy.h"

namespace blipft {

bool wants_cuda(const EngineSettings& config) {
  if (config.parallel.device == DeviceChoice::automatic) return cuda_device_count() > 0;
  return config.parallel.device == DeviceChoice::cuda;
}

// Streams and the branches of a captured step share the queues. With the few default queues, fsdp's early copies from
// other GPUs delayed kernels that do not depend on them (a step took 0.4432 s with 8 queues, 0.4326 s with 32, on four
// H200). But CUDA needs time to start each queue, and the ranks of a machine wait for each other then: four
// processes on one H200 start in 0.37 s with the default, 1.2 s with 16 queues, 2.8 s with 32. With one rank, a step
// takes as long with 8 queues as with 32, also with offload.
void choose_gpu_queues(const EngineSettings& config, const World& world) {
  if (world.size() > 1 && cuts_parameters(config.parallel.strategy))
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16", 0);
}

void check_started_together(const EngineSettings& config, const World& world) {
  if (world.size() > 1 || config.parallel.devices == 1) return;
  struct Starter {
    const char *variable, *also;           // its number of processes; set in each of them
    const char* what;
  };
  // Slurm sets SLURM_NTASKS in a batch script too, but only srun sets SLURM_STEP_NUM_TASKS.
  constexpr Starter kStarters[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "another Open MPI's mpirun"},
                                   {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun without PMIx"},
                                   {"PMI_SIZE", "PMI_RANK", "another MPI's launcher"},
                                   {"WORLD_SIZE", "LOCAL_RANK", "torchrun or the like"}};
  world.run_agreeing_on_errors([&] {
    for (const Starter& starter : kStarters) {
      const char *text = std::getenv(starter.variable), *number = std::getenv(starter.also);
      const int64_t processes = text && number ? std::strtoll(text, nullptr, 10) : 0;
      BLIPFT_USER_CHECK(processes <= 1, "this is one of ", processes, " processes (", starter.variable, "=", text, ", ",
                        starter.also, "=", number, "), but MPI knows of no other: each would run alone. It was started by ",
                        starter.what, "; start it with mpirun -np ", processes, " or srun --mpi=pmix -n ", processes,
                        ". For ", processes, " runs of one rank, give each parallel.devices=1 and its own output.path");
    }
  });
}

void check_device(const EngineSettings& config, const World& world) {
  if (!wants_cuda(config)) return;
  const int gpu = cuda_device_of(world.local_rank());
  BLIPFT_USER_CHECK(gpu < cuda_device_count() || cuda_device_count() == 0, location_of(config, "parallel.devices"), ": ",
                    world.local_size(), " ranks on ", world.host(), ", which has ", cuda_device_count(),
                    " GPUs; start one rank a GPU, use parallel.device=cpu, or, to try several ranks on one GPU, set ",
                    "NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 and newer)");
  check_cuda_device(gpu);
}

int64_t available_host_memory() {
  int64_t bytes = std::numeric_limits<int64_t>::max();
  std::ifstream all("/proc/meminfo");
  for (std::string name, unit; all >> name;) {
    int64_t kib = 0;
    if (name == "MemAvailable:" && all >> kib) bytes = kib * 1024;
    std::getline(all, unit);
  }
  // cgroup version 2 has one line, "0::/path". The limits of parent groups apply too.
  std::ifstream own("/proc/self/cgroup");
  std::string line;
  std::getline(own, line);
  if (!line.starts_with("0::/")) return bytes;
  for (std::filesystem::path group = line.substr(3);; group = group.parent_path()) {
    std::ifstream file("/sys/fs/cgroup" + group.string() + "/memory.max");
    int64_t limit = 0;
    if (file >> limit) bytes = std::min(bytes, limit);  // "max" is not a number: no limit
    if (!group.has_relative_path()) return bytes;
  }
}

void check_host_memory(const EngineSettings& config, const World& world, int64_t bytes) {
  if (bytes == 0) return;
  const int64_t available = available_host_memory(), ranks = world.local_size();
  BLIPFT_USER_CHECK(bytes <= available / ranks, location_of(config, "parallel.offload"), ": parallel.offload: takes ",
                    memory_text(bytes), " of host memory for each of the ", ranks, " rank(s) on ", world.host(),
                    ", which has ", memory_text(available), " left; use a machine (or a job's limit) with more, more ",
                    "ranks with fsdp, train.optim=adamw8bit, or remove offload");
}

int64_t cores_of_a_rank(const World& world) {
  return std::max<int64_t>(1, world.local_cores() / world.local_size());
}

int64_t threads_of_a_rank(const EngineSettings& config, const World& world) {
  if (config.parallel.threads > 0) return config.parallel.threads;
  const char* const text = std::getenv("OMP_NUM_THREADS");
  const int64_t requested = text ? std::atoll(text) : 0;
  return requested > 0 && requested <= std::numeric_limits<int>::max() ? requested : cores_of_a_rank(world);
}

std::unique_ptr<Device> make_device(const EngineSettings& config, const World& world) {
  if (wants_cuda(config)) return make_cuda_device(cuda_device_of(world.local_rank()));
  return make_cpu_device(static_cast<int>(threads_of_a_rank(config, world)));
}

std::string gemm_table_of_user() {
  const char* const home = std::getenv("HOME");
  return home ? concat(home, "/.cache/blipft/gemm_algorithms.txt") : "";
}

std::unique_ptr<Ops> make_ops(const EngineSettings& config, Device& device, const std::string& gemm_table,
                              bool times_products) {
  if (device.kind() != DeviceKind::cuda) return make_cpu_ops();
  const bool thorough = config.parallel.gemm_search == GemmSearchTime::thorough;
  const ProductSearch search = !times_products ? ProductSearch::none
                               : thorough      ? ProductSearch::thorough
                                               : ProductSearch::quick;
  return make_cuda_ops(device, gemm_table, {search, config.train.matmul_precision == MatmulPrecision::high});
}

std::unique_ptr<CommGroups> make_groups(const EngineSettings& config, const World& world, const GroupSizes& sizes,
                                        Device& device) {
  return std::make_unique<CommGroups>(world, sizes, device, [&](const World& ranks, bool scalars) {
    if (device.kind() != DeviceKind::cuda) return make_mpi_comm(ranks);
    // For scalars one thread block is as fast as many and needs less memory for its buffers.
    return make_nccl_comm(ranks, device, scalars ? 1 : config.parallel.nccl_max_ctas);
  });
}

int64_t ranks_of_each_machine(const World& world) {
  const int64_t maximum = world.max(world.local_size()), minimum = -world.max(-world.local_size());
  return maximum == minimum ? maximum : 0;
}

int64_t shard_group_size(const EngineSettings& config, int64_t ranks, int64_t node_ranks) {
  const std::string& requested = config.parallel.shard_ranks.text;
  const std::string location = location_of(config, "parallel.shard_ranks") + ": parallel.shard_ranks: ";
  // ddp, or one rank: each has all weights in its own host memory, and gathers units from there.
  if (offloads(config, OffloadedData::parameters) && config.parallel.strategy != StrategyKind::fsdp) return 1;
  if (requested == "all") return ranks;
  const bool node = requested == "node";
  BLIPFT_USER_CHECK(!node || node_ranks > 0, location, "is node, but not every machine has the same number of ranks; ",
                    "start as many on each, or give a number of ranks");
  const int64_t size = node ? node_ranks : std::stoll(requested);
  if (ranks % size == 0) return size;
  int64_t below = std::min(size, ranks), above = size;
  while (ranks % below != 0) --below;
  while (above <= ranks && ranks % above != 0) ++above;
  const std::string nearest = below < size && above <= ranks ? concat(below, " or ", above) : concat(below);
  throw UserError(concat(location, node ? "a machine has " : "is ", size,
                         node ? " ranks" : "", ", which does not divide the ", ranks, " ranks; the nearest that ",
                         "do: ", nearest, " (all: ", ranks, ")"));
}

GroupSizes group_sizes(const EngineSettings& config, int64_t ranks, int64_t node_ranks) {
  const int64_t shard = shard_group_size(config, ranks, node_ranks);
  return {shard, ranks / shard};
}

int64_t planned_node_ranks(int64_t ranks, int64_t node_ranks) {
  return node_ranks > 0 ? node_ranks : std::min<int64_t>(ranks, cuda_device_count());
}

GroupSizes planned_groups(const EngineSettings& config, int64_t ranks, int64_t node_ranks) {
  const int64_t world = ranks > 0 ? ranks : std::max<int64_t>(1, config.parallel.devices);
  node_ranks = planned_node_ranks(world, node_ranks);
  BLIPFT_USER_CHECK(node_ranks > 0 || config.parallel.shard_ranks != ShardGroup::node, location_of(config, "parallel.shard_ranks"),
                    ": parallel.shard_ranks: is node, and no GPU is here that would tell how many ranks a machine has; "
                    "add --node-ranks N");
  return group_sizes(config, world, node_ranks);
}

}  // namespace blipft
