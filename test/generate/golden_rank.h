// A rank that generates with a golden model, on the CPU, two texts at once.
#pragma once

#include "engine/settings.h"
#include "generate/generation.h"
#include "io/json.h"
#include "plan/generation_plan.h"
#include "support/golden_files.h"
#include "weights/weights.h"

namespace blipft::test {

/// A rank with a golden model, on the CPU.
struct GoldenRank {
  GoldenRank(const std::string& name, int64_t beams, const TextsToGenerate& work, int64_t new_tokens,
             bool scores = false) {
    config.train.precision = Precision::f32_true;
    config.model.path = testing::golden_path(name);
    ModelSettings untrained;
    untrained.trained = false;
    model = make_model(config.model.path, untrained);
    GenerateSettings settings;
    settings.beams = beams;
    settings.max_new_tokens = new_tokens;
    TextsToGenerate texts = work;
    texts.longest_text = scores ? work.longest_prompt : 0;
    const DecodeProgramSettings program = decode_settings(settings, model->inputs(), texts, 2 * beams, false);
    plan = plan_generation(config, *model, 1, StrategyKind::single, program);
    arena = std::make_unique<Arena>(*device, *plan.arena);
    const EngineParts parts{.settings = config, .model = model.get(), .device = device.get(), .ops = ops.get(),
                            .groups = Groups(comm.get()), .arena = arena.get(),
                            .pixel_statistics = {{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}}, .trains = false};
    engine = std::make_unique<Engine>(parts, StrategyKind::single, ShardedSettings{});
    engine->decode_with(program, 0);
    arena->commit();
    engine->bind();
    const WeightContext context{model->units(), &engine->store, engine->strategy.get(), device.get(), ops.get(),
                                arena->scratch()};
    load_weights(context, SafetensorsReader(config.model.path), 1);
  }

  Config config;
  std::unique_ptr<Device> device = make_cpu_device(1);
  std::unique_ptr<Ops> ops = make_cpu_ops();
  std::unique_ptr<Comm> comm = make_self_comm(*device);
  std::unique_ptr<Model> model;
  MemoryPlan plan;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Engine> engine;
};

/// As the script makes them.
inline std::vector<uint8_t> pixels_of(int64_t seed, int64_t size) {
  std::vector<uint8_t> pixels(static_cast<size_t>(3 * size * size));
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<uint8_t>((seed + 7919 * static_cast<int64_t>(i)) * 104729 % 251);
  return pixels;
}

inline TextRequest request_of(const nlohmann::json& one, int64_t number, int64_t picture) {
  return {number, one.at("ids").get<std::vector<int32_t>>(), static_cast<int64_t>(one.at("new").size()),
          picture > 0 ? pixels_of(one.at("seed").get<int64_t>(), picture) : std::vector<uint8_t>{}};
}

}  // namespace blipft::test
