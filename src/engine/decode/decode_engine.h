// DecodeEngine: what generates texts on a rank, wired once for the dry run, the run and the tests.
#pragma once

#include <memory>
#include <string>

#include "engine/decode/decode_program.h"
#include "engine/engine.h"

namespace blipft {

class DecodeEngine {
 public:
  /// Of a model in which nothing is trained. Declares all persistent memory in the arena. `parts`: without optimizer, spans
  /// and text shapes.
  DecodeEngine(const EngineParts& parts, StrategyKind strategy_kind, const ShardedSettings& sharded,
               const DecodeProgramSettings& settings, int32_t pad_id);
  /// After Arena::commit.
  void bind();

  const std::unique_ptr<StoragePolicy> policy;
  ParameterStore store;
  const ShardedSettings sharded;
  std::unique_ptr<Strategy> strategy;
  DecodeProgram program;
};

}  // namespace blipft
