// Connects the parts of a rank; see engine.h.
#include "engine/engine.h"

#include <algorithm>

#include "engine/settings.h"
#include "engine/storage_policy.h"

namespace blipft {

namespace {

StoreContext store_context(const EngineParts& parts, const StoragePolicy& policy, StrategyKind strategy_kind) {
  StoreContext context{.device = parts.device, .ops = parts.ops, .arena = parts.arena, .units = parts.model->units(),
                       .types = precision_types(parts.settings), .optimizer = parts.trains ? parts.optimizer : nullptr,
                       .policy = parts.policy ? parts.policy : &policy};
  context.used_once = !parts.trains || (parts.settings.steps.accumulate_grad_batches == 1 && largest_norm(parts.settings.train) == 0);
  context.shards = shard_count(strategy_kind, parts.groups.shard->size());
  context.gradients_are_summed = parts.groups.all->size() > 1;
  context.index = context.shards > 1 ? parts.groups.shard->rank() : 0;
  return context;
}

// Chooses enough memory to gather the next unit while the previous one computes. In training it is enough for 9 of 10
// units, because memory is scarce; in generation for all units.
ShardedSettings with_prefetch(ShardedSettings settings, const EngineParts& parts, const ParameterStore& store) {
  std::vector<int64_t> sizes;
  for (const Unit* unit : parts.model->units()) sizes.push_back(store.gathered_bytes(*unit));
  std::sort(sizes.begin(), sizes.end());
  if (settings.prefetch_bytes == 0) settings.prefetch_bytes = parts.trains ? sizes[sizes.size() * 9 / 10] : sizes.back();
  return settings;
}

std::unique_ptr<Fp8Products> make_fp8(const EngineParts& parts, const ParameterStore& store) {
  const TrainSection& train = parts.settings.train;
  if (!parts.trains || train.matmul != MatmulType::fp8) return nullptr;
  const Fp8Settings settings{.gradients = train.fp8_gradients == Fp8GradientType::e4m3 ? DType::f8e4m3 : DType::f8e5m2,
                             .min_size = train.fp8_least_size, .excluded = train.matmul_exclude,
                             .kept_bytes = parts.fp8_kept_bytes, .counts = parts.settings.trace.fp8_every > 0,
                             .stored = [&store](const Unit& unit, int64_t weight) { return store.in_fp8(unit, weight); },
                             .keep_inputs = parts.fp8_keep_inputs};
  return std::make_unique<Fp8Products>(parts.model->units(), settings, *parts.arena);
}

}  // namespace

void expose_memory(const ParallelSection& parallel, CommGroups& groups, const Arena& arena, const ParameterStore& store) {
  const bool gathers = parallel.direct_gathers && store.shards() > 1 && store.weights_space() == MemorySpace::device;
  groups.expose(arena.peer_block(), gathers, parallel.direct_reductions);
}

Engine::Engine(const EngineParts& parts, StrategyKind strategy_kind, const ShardedSettings& requested)
    : observer(parts.activity ? std::make_unique<ActivityObserver>(*parts.activity, parts.spans, parts.model->units())
                              : nullptr),
      policy(make_storage_policy(parts.settings)), store(store_context(parts, *policy, strategy_kind)),
      sharded(with_prefetch(requested, parts, store)), fp8(make_fp8(parts, store)), parts_(parts) {
  const StrategyContext context{.device = parts.device, .ops = parts.ops, .groups = parts.groups, .arena = parts.arena,
                                .store = &store, .units = parts.model->units(),
                                .observer = observer ? static_cast<CommObserver*>(observer.get()) : parts.spans};
  strategy = make_strategy(strategy_kind, context, sharded);
  BLIPFT_CHECK(parts.trains || !store.trains(), "texts are generated alone by a model in which something is trained");
  if (!parts.trains) return;
  program = std::make_unique<StepProgram>(
      StepParts{.settings = parts.settings, .device = parts.device, .ops = parts.ops, .comm = parts.groups.all,
                .arena = parts.arena, .model = parts.model, .strategy = strategy.get(), .optimizer = parts.optimizer,
                .spans = parts.spans, .pixel_statistics = parts.pixel_statistics,
                .observer = observer ? static_cast<StepObserver*>(observer.get()) : parts.spans,
                .activity = parts.activity, .fp8 = fp8.get()},
      parts.text_shapes);
}

void Engine::decode_with(const DecodeProgramSettings& settings, int32_t pad_id) {
  DecodeParts parts{.device = parts_.device, .ops = parts_.ops, .arena = parts_.arena, .model = parts_.model,
                    .strategy = strategy.get(), .pixel_statistics = parts_.pixel_statistics,
                    .compute = precision_types(parts_.settings).compute, .pad_id = pad_id,
                    .graphs = parts_.settings.parallel.cuda_graph && parts_.device->kind() == DeviceKind::cuda,
                    .own_workspace = !parts_.trains};
  parts.spans = parts_.spans;
  parts.observer = observer ? static_cast<StepObserver*>(observer.get()) : parts_.spans;
  decoder = std::make_unique<DecodeProgram>(parts, settings);
}

void Engine::bind() {
  store.bind();
  strategy->bind();
  if (fp8) fp8->bind(*parts_.arena);
  if (program) program->bind();
  if (decoder) decoder->bind();
}

}  // namespace blipft
