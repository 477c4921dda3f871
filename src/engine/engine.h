// Engine: what computes the steps of a rank, wired once for the dry run, the run and the tests.
#pragma once

#include <memory>
#include <string>

#include "blipft/fp8_products.h"
#include "blipft/store.h"
#include "blipft/strategy.h"
#include "engine/activity_observer.h"
#include "engine/decode/decode_program.h"
#include "engine/engine_settings.h"
#include "engine/step_program.h"

namespace blipft {

/// What an engine works with; nothing here is owned.
struct EngineParts {
  EngineSettings settings;
  Model* model = nullptr;
  Device* device = nullptr;
  Ops* ops = nullptr;
  Groups groups;
  Arena* arena = nullptr;
  const Optimizer* optimizer = nullptr;
  const StoragePolicy* policy = nullptr;   ///< null: as settings.storage says
  SpanRecorder* spans = nullptr;           ///< optional
  PixelStatistics pixel_statistics;        ///< of the pictures, if the model reads any
  std::vector<TextShape> text_shapes;      ///< those that steps may have, ascending
  Activity* activity = nullptr;            ///< optional: is told of units and their collectives
  int64_t fp8_kept_bytes = 0;              ///< of weights in fp8 that stay over a step
  bool fp8_keep_inputs = false;            ///< whether inputs in fp8 stay for backward
  bool trains = true;                      ///< false: texts are generated alone, by a model in which nothing is trained
};

/// Lets the other ranks of this machine address the memory of an engine, where `peers` asks for it. Called by all ranks,
/// after Arena::commit; CommGroups::withdraw() ends it.
void expose_memory(const PeerMemorySettings& peers, CommGroups& groups, const Arena& arena, const ParameterStore& store);

class Engine {
 public:
  /// Declares all persistent memory in the arena. Without sharded.prefetch_bytes: enough for 9 of 10 units of a model that is
  /// trained, for all units of another.
  Engine(const EngineParts& parts, StrategyKind strategy_kind, const ShardedSettings& sharded);
  /// Adds the program that generates texts, alone or between steps. Called before memory is planned or committed; it may be
  /// called again, and the last call counts. Between steps it takes no persistent memory.
  void decode_with(const DecodeProgramSettings& settings, int32_t pad_id);
  /// After Arena::commit.
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
