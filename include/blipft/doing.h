// Doing: what a rank is doing: one list for what models and strategies tell of, traces number and watchdogs hear.
#pragma once

#include <cstdint>

namespace blipft {

enum class Doing : uint8_t {
  // By these numbers in traces.
  forward, recompute, backward, loss,      ///< of a unit: the model's phases
  gather, reduce_scatter, all_reduce,      ///< collectives of a unit's parameters and gradients
  update,                                  ///< of the shard of a unit, or of all
  step,                                    ///< a whole pass
  data,                                    ///< waiting for the next batch
  // Of the host alone, in no trace.
  host,                                    ///< its own work
  device,                                  ///< waiting for the GPU
  barrier, broadcast, sum, gather_on_host, agreement,  ///< collectives of World
};
constexpr int kTracedDoings = static_cast<int>(Doing::data) + 1;

inline bool is_collective(Doing doing) {
  return (doing >= Doing::gather && doing <= Doing::all_reduce) || doing >= Doing::barrier;
}

}  // namespace blipft
