// MemoryPlan: the dry run of a step, the choices that follow from it, and the table that reports it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blipft/arena.h"
#include "blipft/config.h"
#include "blipft/model.h"
#include "blipft/strategy.h"
#include "engine/decode/decode_shape.h"
#include "engine/engine.h"

namespace blipft {

/// The outcome of a dry run, for one rank.
struct MemoryPlan {
  std::unique_ptr<Device> device;          // a plan device: without memory
  std::unique_ptr<Arena> arena;            // the planned memory
  std::unique_ptr<Optimizer> optimizer;    // the engine refers to these
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Comm> all, shard, replicate;
  std::unique_ptr<SpanRecorder> spans;     // the spans of each pass, if the config traces units
  std::unique_ptr<Engine> engine;          // its strategy has recorded the order of units
  GroupSizes ranks{1};
  StrategyKind strategy = StrategyKind::single;
  ShardedSettings sharded;
  int64_t fp8_kept_bytes = 0;              // as EngineParts::fp8_kept_bytes
  bool fp8_keep_inputs = false;            // as EngineParts::fp8_keep_inputs
  std::vector<TextShape> text_shapes;      // of all possible steps, ascending
  int64_t loading_bytes = 0, saving_bytes = 0;  // transient memory while weights are loaded and saved
  std::optional<DecodeProgramSettings> decoding;  // set if texts are generated, alone or at validations
  Groups groups() const { return {all.get(), shard.get(), replicate.get()}; }
};

/// Returns a plan without an engine and without recorded passes: a device without memory, its ops and groups.
MemoryPlan empty_plan(const GroupSizes& ranks, StrategyKind strategy);

/// Dry-runs a step of `config` on `ranks` ranks for each of `text_shapes`. With parallel.reshard=auto, units stay
/// gathered over the step if the plan then fits `device_bytes` (0: unknown, they do not stay). `evaluation`: the
/// generation at validations, planned by plan_validation_texts(); null: none. With train.fp8_keep_weights=auto, as many
/// fp8 weights stay over a step as fit in `device_bytes` (0: none). With train.fp8_keep_inputs=auto, fp8 inputs stay
/// from forward to backward if all fp8 weights stay and the inputs fit too, or if keeping them needs no more memory
/// than without.
MemoryPlan plan_memory(const Config& config, Model& model, const GroupSizes& ranks, int64_t device_bytes,
                       std::vector<TextShape> text_shapes, const StoragePolicy* policy = nullptr,
                       const EvaluationWork* evaluation = nullptr);

/// First part of a dry run, about 10 ms: records reservations and releases without choosing addresses. The arena's
/// peak_live_bytes() are then a lower bound of its total_bytes(). `hold`: fsdp keeps units gathered over a step.
MemoryPlan record_plan(const Config& config, Model& model, const GroupSizes& ranks, bool hold,
                       std::vector<TextShape> text_shapes);
/// Second part of a dry run: chooses the addresses of all tensors, so that the arena's total_bytes() are known.
void place_plan(const Config& config, const Model& model, MemoryPlan& plan);

/// Makes the engine that `plan` describes, with its memory in parts.arena, which follows plan.arena. To be called
/// before Arena::commit. `pad_id`: padding id of generated texts.
std::unique_ptr<Engine> make_engine(const MemoryPlan& plan, const EngineParts& parts, int32_t pad_id = 0);

/// Returns the text shapes of a run with the train.batch_size and train.accumulate_grad_batches of `config`.
using TextShapesOf = std::function<std::vector<TextShape>(const Config& config)>;

/// Returns a train.batch_size up to `maximum` that fits `device_bytes`, found by bisection to within 1/64 of the largest;
/// 0 if not even 1 fits. Bisection is not exact: a larger batch usually needs more memory, but not always.
int64_t largest_batch(const Config& config, Model& model, const GroupSizes& ranks,
                      int64_t device_bytes, const TextShapesOf& text_shapes, int64_t maximum,
                      const EvaluationWork* evaluation = nullptr);

/// Returns advice on data.max_pixels for a run that does not fit `device_bytes`: "the run fits with data.max_pixels=N", found by
/// bisection to within 1/16. Each probe surveys the data. "" if the model reads no pictures of any size.
std::string max_pixels_text(const Config& config, Model& model, const GroupSizes& ranks, int64_t device_bytes);

/// Returns the device bytes outside the arena: the CUDA context, library handles, NCCL's buffers and the CUDA graphs of
/// steps with `planned_takes` tensors in all (Arena::planned_takes). The sizes were measured on H200 (docs/results.md);
/// those of the communicators of several groups are estimated from them.
int64_t bytes_outside_of_arena(const Config& config, const GroupSizes& ranks, int64_t planned_takes);

/// "single", "ddp", "fsdp" or, if each of several groups shards the parameters, "fsdp, 2 groups of 4 ranks".
std::string groups_text(const MemoryPlan& plan);
/// groups_text(), then ", reshard always" or ", reshard step" for fsdp, then ", parameters from the host" if they are
/// there.
std::string strategy_text(const MemoryPlan& plan);
/// The resolved value of parallel.reshard: "always" or "step".
std::string reshard_name(const MemoryPlan& plan);
/// The memory of generation at validations, and whether it fits in the step's activations; "" if nothing is generated.
std::string decoding_text(const MemoryPlan& plan);
/// Lists which matrices are multiplied in fp8, which are not and why, and how many bytes of their quantized values stay
/// over a step; "" if the run has no products in fp8.
std::string fp8_text(const MemoryPlan& plan, const Model& model);
/// Table of the owners and of the largest buffers of a planned arena, after `heading`.
std::string memory_table(const std::string& heading, const Arena& arena);
/// memory_table() of a run, for --plan.
std::string plan_table(const MemoryPlan& plan);
/// Shorter table for the header of a run: all owners on a GPU, whose memory is scarce, only the total on CPUs, and the
/// host memory. The trace has the full table.
std::string header_table(const MemoryPlan& plan, bool gpu);
}  // namespace blipft
