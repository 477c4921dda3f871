// Planning: the dry run of a step, the choices that follow from it, and the table that tells of it.
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
  std::unique_ptr<Device> device;          // nothing behind it
  std::unique_ptr<Arena> arena;            // the blueprint
  std::unique_ptr<Optimizer> optimizer;    // the engine refers to these
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Comm> all, shard, replicate;
  std::unique_ptr<SpanRecorder> spans;     // what each pass enqueues, where the config traces units
  std::unique_ptr<Engine> engine;          // its strategy knows the order of units
  GroupSizes ranks{1};
  StrategyKind strategy = StrategyKind::single;
  ShardedSettings sharded;
  int64_t fp8_kept_bytes = 0;              // EngineParts'
  bool fp8_keep_inputs = false;            // likewise
  std::vector<TextShape> text_shapes;      // those that steps may have, ascending
  int64_t loading_bytes = 0, saving_bytes = 0;  // scratch for weights, before and after the steps
  std::optional<DecodeProgramSettings> decoding;  // of texts that are generated, alone or at validations
  Groups groups() const { return {all.get(), shard.get(), replicate.get()}; }
};

/// Returns a plan in which nothing is recorded yet and which has no engine: a device without memory, its ops and groups.
MemoryPlan empty_plan(const GroupSizes& ranks, StrategyKind strategy);

/// Dry-runs a step of `config` on `ranks` ranks for each of `text_shapes`. With parallel.reshard=auto, units are held
/// over the step if the plan then fits `device_bytes` (0: unknown, not held). `evaluation`: what is generated at validations;
/// null: nothing. Its memory is where a step's activations lie: so many texts grow at once, and units are gathered once an
/// evaluation, as that allows; where not even one text fits there, it makes the plan larger. With train.fp8_keep_weights=auto,
/// weights in fp8 stay over a step as far as `device_bytes` have room for them (0: none), and with train.fp8_keep_inputs=auto
/// inputs from forward to backward where there is room beside all of these, or where it costs nothing.
MemoryPlan plan_memory(const Config& config, Model& model, const GroupSizes& ranks, int64_t device_bytes,
                       std::vector<TextShape> text_shapes, const StoragePolicy* policy = nullptr,
                       const EvaluationWork* evaluation = nullptr);

/// The first part of such a dry run, in some 10 ms: takes and gives without places, which the arena's
/// peak_live_bytes() are the least for. `hold`: fsdp keeps units gathered over a step.
MemoryPlan record_plan(const Config& config, Model& model, const GroupSizes& ranks, bool hold,
                       std::vector<TextShape> text_shapes);
/// The second: finds the places, so that the arena's total_bytes() are known.
void place_plan(const Config& config, const Model& model, MemoryPlan& plan);

/// The engine that `plan` is of, with its memory in parts.arena, which follows the plan's: before Arena::commit. `pad_id`: of
/// texts that are generated.
std::unique_ptr<Engine> make_engine(const MemoryPlan& plan, const EngineParts& parts, int32_t pad_id = 0);

/// The text shapes of a run with another train.batch_size and train.accumulate_grad_batches.
using TextShapesOf = std::function<std::vector<TextShape>(const Config& config)>;

/// The largest train.batch_size up to `most` that was found to fit `device_bytes`, to a 64th; 0 when not even 1 does. Texts
/// of larger steps need more in general, not always.
int64_t largest_batch(const Config& config, Model& model, const GroupSizes& ranks,
                      int64_t device_bytes, const TextShapesOf& text_shapes, int64_t most,
                      const EvaluationWork* evaluation = nullptr);

/// Device bytes of the CUDA context, library handles, NCCL's buffers and the graphs of steps that take so many tensors in all
/// (Arena::planned_takes), which no arena sees: measured on H200 (docs/results.md); those of several groups' communicators
/// are estimated from that.
int64_t bytes_outside_of_arena(const Config& config, const GroupSizes& ranks, int64_t planned_takes);

/// "single", "ddp", "fsdp" or, where parameters are cut in several groups, "fsdp, 2 groups of 4 ranks".
std::string groups_text(const MemoryPlan& plan);
/// That, for fsdp with "reshard always" or "step": what `auto` became; and whether parameters come from the host.
std::string strategy_text(const MemoryPlan& plan);
/// What parallel.reshard became: "always" or "step".
std::string reshard_name(const MemoryPlan& plan);
/// What generation at validations takes, and where it lies; "" where nothing is generated.
std::string decoding_text(const MemoryPlan& plan);
/// Which matrices are multiplied in fp8, which are not and why, and how much of their codes stays over a step; "" where the run
/// has no products in fp8.
std::string fp8_text(const MemoryPlan& plan, const Model& model);
/// The table of owners and the largest buffers of a planned arena, behind `heading`.
std::string memory_table(const std::string& heading, const Arena& arena);
/// That of a run for --plan.
std::string plan_table(const MemoryPlan& plan);
/// And for its header: the owners on a GPU, whose memory is short, else the total alone; and what lies in the host. The trace
/// has all of it.
std::string header_table(const MemoryPlan& plan, bool gpu);
}  // namespace blipft
