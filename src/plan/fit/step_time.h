// StepTime: the duration of a step, estimated from the work that its dry run enqueues. For --plan, not a measurement.
#pragma once

#include <string>

#include "plan/memory_plan.h"

namespace blipft {

/// The speed of a GPU and of its links.
struct MachineRates {
  const char* name;                        ///< a part of the GPU's name in the driver
  double bf16, tf32, f32, fp8;             ///< FLOP/s of matrix products; fp8 is 0 if the GPU has none
  double memory;                           ///< bytes/s read and written
  double collectives;                      ///< bytes/s, bus bandwidth of an all-reduce within a machine
  double gathers;                          ///< bytes/s, bus bandwidth of a gather
  double link, link_both;                  ///< bytes/s between host and GPU: one direction, sum of both
  double kernel;                           ///< minimum seconds of a kernel: start, end, an underused GPU
  bool measured;                           ///< false: from the data sheet
};
/// Rates measured on H200: products of 8192 x 8192 x 8192 under sustained load, a copy, an all-reduce on 4 GPUs, a copy
/// from pinned host memory, the update of a 13B model whose states are in pinned host memory. TF32 and kernels were
/// derived from steps (docs/fit.md). f32 was not measured: bf16 times the ratio in NVIDIA's data sheet (67 to 989
/// TFLOP/s).
const MachineRates& h200_rates();
/// Returns the rates of the GPU whose driver name contains a known name: from its data sheet; an H200's for other GPUs.
const MachineRates& rates_of(const std::string& name);

/// Seconds of a step on one rank.
struct StepTime {
  double products = 0;                     ///< matrix products and attention, including recomputation
  double memory = 0;                       ///< reading and writing weights, gradients, activations
  double update = 0;                       ///< the update's gradients, weights and states in device memory
  double kernels = 0;                      ///< time of short kernels beyond their work
  double collectives = 0;                  ///< all collectives, hidden behind compute or not
  double link = 0;                         ///< transfers of host memory; both directions overlap in the update
  double collectives_exposed = 0, link_exposed = 0;  ///< the parts that the step waits for
  double total() const { return products + memory + update + kernels + collectives_exposed + link_exposed; }
};

/// Estimates the time of a step whose micro-batches have the shape `text`. `hold`: fsdp keeps units gathered over a
/// step.
///   products: operations of each phase / rate.
///   memory: bytes / copy bandwidth. The bytes are those of weights in each product (stored quantized values are read,
///   and decoded ones written), and twice those of all transient tensors. Gradients (also read if they accumulate)
///   count only as far as the products that write them are too short to hide them.
///   kernels: one kernel of at least rates.kernel for each tensor of a step: hypot(minimum times, work) - work.
///   collectives: bytes (n - 1) / n, twice for all-reduces, / bus bandwidth (gathers: rates.gathers). The step waits
///   for the part that compute is too short to hide, and for kSlowedByCollectives of the hidden part.
///   link: an update reads and writes states, master weights and weights, while the last backward gathers: bytes of the
///   busier direction / link or of both / link_both, whichever is longer. Then weights of all other gathers and
///   activations out and in, / link. The step waits for the longest of: the part that compute is too short to hide; the
///   part of updates that the last micro-batch's backward is too short to hide (all of it if gradients are clipped);
///   kSlowedByLink of the whole.
StepTime estimate_step_time(const Config& config, Model& model, const GroupSizes& ranks, bool hold,
                            const TextShape& text, const MachineRates& rates = h200_rates());

/// "0.165 s (products 0.089, memory 0.053, update 0.023)"
std::string step_time_text(const StepTime& time);
/// The rates and their source, for --plan.
std::string rates_text(const Config& config, const MachineRates& rates = h200_rates());

}  // namespace blipft
