// StepTime: how long a step may take, estimated from what its dry run enqueues: for --plan, not for the record.
#pragma once

#include <string>

#include "plan/memory_plan.h"

namespace blipft {

/// What a GPU and what joins it to others do in a second.
struct MachineRates {
  const char* name;                        ///< of the GPU, a part of what its driver calls it
  double bf16, tf32, f32, fp8;             ///< FLOP/s of matrix products; fp8 0: this GPU has none
  double memory;                           ///< bytes/s read and written
  double collectives;                      ///< bytes/s, bus bandwidth of an all-reduce within a machine
  double gathers;                          ///< the same of gathers
  double link, link_both;                  ///< bytes/s between host and GPU: one way alone, both ways together
  double kernel;                           ///< seconds that a kernel takes at least: start, end, a GPU not full
  bool measured;                           ///< else from its data sheet
};
/// Measured on H200: products of 8192 cubed under sustained load, a copy, an all-reduce on 4 GPUs, a copy from pinned
/// host memory, the update of a 13B model whose states lie there; TF32 and kernels by steps (docs/fit.md). f32 was not: as many
/// times less than bf16 as in NVIDIA's data sheet (989, 67 TFLOP/s).
const MachineRates& h200_rates();
/// Of the GPU that its driver calls `name`: from data sheets, but for an H200's, which also stand for what is not known.
const MachineRates& rates_of(const std::string& name);

/// Seconds of one rank.
struct StepTime {
  double products = 0;                     ///< matrix products and attention, recomputation counted
  double memory = 0;                       ///< weights, gradients and activations, read and written by them
  double update = 0;                       ///< gradients, weights and states in device memory
  double kernels = 0;                      ///< what short kernels take beyond their work
  double collectives = 0;                  ///< all, hidden behind the above or not
  double link = 0;                         ///< all that lies in host memory, both ways as far as they go together
  double collectives_exposed = 0, link_exposed = 0;  ///< what of these the step waits for
  double total() const { return products + memory + update + kernels + collectives_exposed + link_exposed; }
};

/// Of steps whose micro-batches have the shape `text`. `hold`: fsdp keeps units gathered over a step.
///   products: operations of each phase / rate; memory: bytes of weights for each product that they enter (stored codes are
///   read, and written once decoded) and twice those of all transient tensors, / copy bandwidth; gradients (read too where
///   they accumulate) as far as the products that write them are too short for that. kernels: one for each tensor that a step
///   takes, of rates.kernel at least: the quadratic mean of that and of their work, less the work.
///   collectives: bytes (n - 1) / n, twice for sums over all ranks, / bus bandwidth. The step waits for what compute is
///   too short to hide, and for kSlowedByCollectives of the rest; gathers have a rate of their own.
///   link: states, masters and weights that an update reads and writes, with the gathers of the last backward beside it:
///   the larger way's bytes / link, or the sum / link_both, whichever is longer; weights for each other gather,
///   activations out and in, / link. The step waits for what compute is too short to hide; for what the last
///   micro-batch's backward is too short to hide of the updates, or, where gradients are clipped, for all of these;
///   and is slowed down by kSlowedByLink of the whole.
StepTime estimate_step_time(const Config& config, Model& model, const GroupSizes& ranks, bool hold,
                            const TextShape& text, const MachineRates& rates = h200_rates());

/// "0.165 s (products 0.089, memory 0.053, update 0.023)"
std::string step_time_text(const StepTime& time);
/// What the rates are, and where from.
std::string rates_text(const Config& config, const MachineRates& rates = h200_rates());

}  // namespace blipft
