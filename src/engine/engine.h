// Engine: the parts that compute the steps of a rank, connected in the same way for dry runs, runs and tests.
#pragma once

#include <memory>
#include <string>

#include "blipft/fp8_products.h"
#include "blipft/store.h"
#include "blipft/strategy.h"
#include "engine/activity_observer.h"
#include "engine/decode/decode_program.h"
#include "blipft/engine_settings.h"
#include "engine/step_program.h"

namespace blipft {

/// The objects that an engine uses. It owns none of them.
struct EngineParts {
  EngineSettings settings;
  Model* model = nullptr;
  Device* device = nullptr;
  Ops* ops = nullptr;
  Groups groups;
  Arena* arena = nullptr;
  const Optimizer* optimizer = nullptr;
  const StoragePolicy* policy = nullptr;   ///< null: made from settings
  SpanRecorder* spans = nullptr;           ///< optional
  PixelStatistics pixel_statistics;        ///< normalization of the pictures, if the model reads any
  std::vector<TextShape> text_shapes;      ///< of all possible steps, ascending
  Activity* activity = nullptr;            ///< optional: gets reports of units and their collectives
  int64_t fp8_kept_bytes = 0;              ///< maximum bytes of fp8 weights that stay over a step
  bool fp8_keep_inputs = false;            ///< true if inputs in fp8 stay for the backward
  bool trains = true;                      ///< false: only generates texts; no parameter is trained
};

/// Lets the other ranks of this machine address the memory of an engine, if `parallel` requests it. All ranks must call
/// it, after Arena::commit. CommGroups::withdraw() ends the access.
void expose_memory(const ParallelSection& parallel, CommGroups& groups, const Arena& arena, const ParameterStore& store);

class Engine {
 public:
  /// Declares all persistent memory in the arena. If sharded.prefetch_bytes is 0, uses the size of the unit at the 90th
  /// percentile, or of the largest unit if the engine does not train.
  Engine(const EngineParts& parts, StrategyKind strategy_kind, const ShardedSettings& sharded);
  /// Adds the program that generates texts, alone or between steps. To be called before memory is planned or committed.
  /// If it is called again, the last call counts. An engine that trains reserves no persistent memory for it.
  void decode_with(const DecodeProgramSettings& settings, int32_t pad_id);
  /// To be called after Arena::commit.
  void bind();

  const std::unique_ptr<ActivityObserver> observer;  ///< null without an activity
  const std::unique_ptr<StoragePolicy> policy;
  ParameterStore store;
  const ShardedSettings sharded;
  std::unique_ptr<Strategy> strategy;
  const std::unique_ptr<Fp8Products> fp8;            ///< null without train.matmul fp8
  std::unique_ptr<StepProgram> program;              ///< null unless parts.trains
  std::unique_ptr<DecodeProgram> decoder;            ///< null without decode_with()

 private:
  EngineParts parts_;
};

}  // namespace blipft
