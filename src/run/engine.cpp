// The wiring of a rank's parts; see engine.h.
#include "run/engine.h"

namespace blipft {

namespace {

StoreContext store_context(const EngineParts& parts, const std::string& strategy_name) {
  StoreContext context{parts.device, parts.ops, parts.arena, parts.model->units(),
                       PrecisionTypes::of(*parts.config), parts.optimizer, parts.policy};
  const TrainSection& train = parts.config->train;
  context.used_once = train.accumulate_grad_batches == 1 && train.gradient_clip_val == 0;
  context.shards = shard_count(strategy_name, parts.groups.shard->size());
  context.index = context.shards > 1 ? parts.groups.shard->rank() : 0;
  return context;
}

}  // namespace

Engine::Engine(const EngineParts& parts, const std::string& strategy_name, const ShardedSettings& sharded)
    : store(store_context(parts, strategy_name)) {
  const StrategyContext context{parts.device, parts.ops, parts.groups, parts.arena, &store, parts.model->units(),
                                parts.spans};
  strategy = make_strategy(strategy_name, context, sharded);
  program = std::make_unique<StepProgram>(
      StepParts{parts.config, parts.device, parts.ops, parts.groups.all, parts.arena, parts.model, strategy.get(),
                parts.optimizer, parts.spans, parts.pixel_statistics},
      parts.text_shapes);
}

void Engine::bind() {
  store.bind();
  strategy->bind();
  program->bind();
}

}  // namespace blipft
