// RankOperation: the activities of a rank, which models and strategies report and which traces and watchdogs record.
#pragma once

#include <cstdint>

namespace blipft {

enum class RankOperation : uint8_t {
  // Traces contain these numbers.
  forward, recompute, backward, loss,      ///< of a unit: the model's phases
  gather, reduce_scatter, all_reduce,      ///< collectives of a unit's parameters and gradients
  update,                                  ///< optimizer update of the shard of a unit, or of all units
  step,                                    ///< a whole pass
  data,                                    ///< waiting for the next batch
  // Activities of the host, which traces do not contain.
  host,                                    ///< host work
  device,                                  ///< waiting for the GPU
  barrier, broadcast, sum, gather_on_host, agreement,  ///< collectives of World
};
constexpr int kTracedOperations = static_cast<int>(RankOperation::data) + 1;

inline bool is_collective(RankOperation doing) {
  return (doing >= RankOperation::gather && doing <= RankOperation::all_reduce) || doing >= RankOperation::barrier;
}

}  // namespace blipft
