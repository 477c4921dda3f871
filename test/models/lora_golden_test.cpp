// LoRA against PEFT, on tiny models whose golden files tools/blipft_golden/lora.py computed in float64: adapters that PEFT
// saved are loaded, loss, gradients and five AdamW steps compared, saved again and merged. On the CPU, and on the GPU
// where there is one.
#include "agreement/output_folder.h"
#include "checkpoint/saving.h"
#include "models/model_golden.h"
#include "strategies/strategy_harness.h"
#include "support/choice_of.h"
#include "support/error_message.h"
#include "support/golden_files.h"
#include "support/temporary_directory.h"
#include "weights/adapter_files.h"
#include "weights/stored_tensors.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

const std::vector<std::string> kCases = {"lora_all", "lora_some", "lora_blip2"};

Config lora_config(const Golden& golden, Precision precision, const char* text_padding) {
  Config config = config_for(golden, precision, text_padding);
  const nlohmann::json& lora = golden.about["lora"];
  config.adapter.kind = AdapterKind::lora;
  config.adapter.path = golden.directory + "/adapter";
  config.adapter.r = lora["r"];
  config.adapter.alpha = lora["lora_alpha"];
  config.adapter.rslora = lora.value("use_rslora", false);
  config.adapter.targets = lora["target_modules"].get<std::vector<std::string>>();
  return config;
}

void check_lora(const std::string& name, DeviceKind kind, const char* text_padding) {
  CAPTURE(name);
  CAPTURE(text_padding);
  const Golden golden(name);
  const Config config = lora_config(golden, Precision::f32_true, text_padding);
  {
    Trainer trainer(golden, config, kind);
    const StepResult result = trainer.step(0);
    CHECK(result.loss == doctest::Approx(golden.floats("loss")[0]).epsilon(1e-5));
    CHECK(result.grad_norm == doctest::Approx(golden.floats("grad_norm")[0]).epsilon(1e-5));
    for (const Unit* unit : trainer.model->units()) CHECK(unit->trainable == holds_adapters(*unit));
    const Worst worst = worst_tensor(
        trainer, golden, "grad.", [&](const Unit& unit) { return trainer.engine->store.gradient(unit); });
    CHECK_MESSAGE(worst.error <= 1e-5, "gradient of ", worst.name, ": ", worst.error);
  }
  Trainer trainer(golden, config, kind);
  const std::vector<float> losses = golden.floats("losses");
  for (int i = 0; i < 5; ++i)
    CHECK(trainer.step(1e-3).loss == doctest::Approx(losses[static_cast<size_t>(i)]).epsilon(1e-5));
  const Worst worst = worst_tensor(trainer, golden, "step5.", [&](const Unit& unit) {
    return holds_adapters(unit) ? trainer.engine->store.weights(unit) : Tensor{};
  });
  CHECK_MESSAGE(worst.error <= 2e-5, "weights after 5 steps, ", worst.name, ": ", worst.error);  // as check_f32
}

/// Saved without a step: PEFT's own files again, and the merged weights.
void check_saved(const std::string& name, DeviceKind kind) {
  CAPTURE(name);
  const Golden golden(name);
  Config config = lora_config(golden, Precision::f32_true, "packed");
  const TemporaryDirectory folder;
  config.output.path = folder.path.string();
  config.output.save_model = config.output.save_merged = true;
  Trainer trainer(golden, config, kind);
  const WeightContext context{trainer.model->units(), &trainer.engine->store, trainer.engine->strategy.get(),
                              trainer.device.get(), trainer.ops.get(), trainer.arena->scratch()};
  const SafetensorsReader base(golden.directory);
  const std::vector<std::string> folders = output_names(config).saved;
  for (size_t i = 0; i < folders.size(); ++i)
    save_weights(context, mpi_world(), {folders[i], golden.directory, SaveSettings::of(config)[i], &base,
                                        adapter_config({config.model, config.adapter, config}, trainer.model->units())});
  const SafetensorsReader saved(folder / "adapter", "adapter_model"), peft(golden.directory + "/adapter", "adapter_model");
  const SafetensorsReader merged(folder / "model");
  const auto numbers = [](const SafetensorsReader& reader, const std::string& tensor) {
    std::vector<float> values(static_cast<size_t>(reader.tensors().at(tensor).numel()));
    REQUIRE(reader.tensors().at(tensor).dtype == DType::f32);
    reader.read(tensor, 0, static_cast<int64_t>(values.size()), values.data());
    return values;
  };
  for (const auto& [key, stored] : saved.tensors()) {
    CAPTURE(key);
    REQUIRE(peft.tensors().count(key) == 1);
    CHECK(stored.shape == peft.tensors().at(key).shape);
    CHECK(numbers(saved, key) == numbers(peft, key));
  }
  CHECK(merged.tensors().size() == base.tensors().size());
  int64_t changed = 0;
  for (const auto& [key, stored] : base.tensors()) changed += numbers(base, key) != numbers(merged, key);
  CHECK(changed == static_cast<int64_t>(saved.tensors().size()) / 2);
  const std::string merged_key = golden.about["merged"];
  CHECK(relative_error(numbers(merged, merged_key), golden.floats("merged." + merged_key), {}) <= 1e-6);
  const auto text = nlohmann::json::parse(read_text_file(folder / "adapter/adapter_config.json"));
  const auto ours = nlohmann::json::parse(read_text_file(golden.directory + "/adapter/adapter_config.json"));
  for (const char* key : {"peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias"})
    CHECK(text[key] == ours[key]);
}

}  // namespace

TEST_SUITE("lora golden") {
  TEST_CASE("loss, gradients and five AdamW steps agree with PEFT in f32 on the CPU") {
    for (const std::string& name : kCases)
      for (const char* text_padding : {"max", "packed"}) check_lora(name, DeviceKind::cpu, text_padding);
  }
  TEST_CASE("activation checkpointing changes no bit of adapters' gradients") {
    const auto run = [&](const char* name, const char* act_ckpt) {
      const Golden golden(name);
      Config config = lora_config(golden, Precision::f32_true, "packed");
      config.train.act_ckpt = choice_of<LayerCheckpointing>(act_ckpt);
      config.adapter.dropout = 0.25;
      config.train.dropout = true;
      Trainer trainer(golden, config, DeviceKind::cpu);
      std::vector<std::vector<float>> found = {{static_cast<float>(trainer.step(0).loss)}};
      for (const Unit* unit : trainer.model->units())
        if (holds_adapters(*unit)) found.push_back(trainer.host(trainer.engine->store.gradient(*unit)));
      return found;
    };
    for (const char* name : {"lora_all", "lora_blip2"}) {  // of OPT's MLP, signs are kept
      CAPTURE(name);
      const auto none = run(name, "none");
      CHECK(run(name, "half") == none);
      CHECK(run(name, "full") == none);
    }
  }
  TEST_CASE("of a frozen MLP's relu signs are kept, not its output") {
    const Golden golden("lora_blip2");
    const Trainer trainer(golden, lora_config(golden, Precision::f32_true, "packed"), DeviceKind::cpu);
    int64_t signs = 0, outputs = 0;
    for (const PlanEntry& entry : trainer.arena->peak_entries()) {
      if (entry.name == "mlp signs") signs = entry.bytes;
      if (entry.name == "mlp inner") outputs = entry.bytes;
    }
    CHECK(signs > 0);
    CHECK(outputs < 32 * signs);           // those of two layers at most, where all of them were kept
  }
  TEST_CASE("what adapters are refused") {
    const Golden golden("lora_all");
    const auto refused = [&](auto change) {
      Config config = lora_config(golden, Precision::f32_true, "packed");
      change(config);
      return message_of([&] { Trainer trainer(golden, config, DeviceKind::cpu); });
    };
    CHECK(refused([](Config& c) { c.adapter.targets = {"q", "qq_proj"}; }).find("\"qq_proj\"") != std::string::npos);
    CHECK(refused([](Config& c) { c.adapter.r = 5; }).find("r: found 4, the run file has 5") != std::string::npos);
    CHECK(refused([](Config& c) { c.adapter.alpha = 7; }).find("lora_alpha") != std::string::npos);
    CHECK(refused([](Config& c) { c.adapter.rslora = true; }).find("use_rslora") != std::string::npos);
    CHECK(refused([](Config& c) { c.adapter.targets = {"q"}; }).find("no adapter that the run file describes") !=
          std::string::npos);
    CHECK(refused([](Config& c) { c.adapter.path = testing::golden_path("lora_some/adapter"); }).find("lora_some") !=
          std::string::npos);
  }
  TEST_CASE("loss, gradients and five AdamW steps agree with PEFT in f32 on the GPU") {
    if (!gpu_or_skip("LoRA golden on the GPU")) return;
    for (const std::string& name : kCases)
      for (const char* text_padding : {"max", "packed"}) check_lora(name, DeviceKind::cuda, text_padding);
  }
}

// Saving needs MPI.
TEST_SUITE("mpi lora") {
  TEST_CASE("adapters are saved as PEFT saves them, and merge as PEFT merges them") {
    if (mpi_world().size() > 1) return;      // a run of one rank
    for (const char* name : {"lora_all", "lora_blip2"}) check_saved(name, DeviceKind::cpu);
  }
  TEST_CASE("merging an adapter of a tied head unties it: the same loss without adapters, embeddings as they were") {
    if (mpi_world().size() > 1) return;
    for (const auto& [name, head, embeddings] :
         {std::tuple{"lora_some", "lm_head", "model.embed_tokens.weight"},
          {"lora_blip2", "language_model.lm_head", "language_model.model.decoder.embed_tokens.weight"}}) {
      CAPTURE(name);
      const Golden golden(name);
      Config config = lora_config(golden, Precision::f32_true, "packed");
      config.adapter.path.clear();
      config.adapter.targets = {"k", "head"};
      const TemporaryDirectory folder;
      config.output.path = folder.path.string();
      config.output.save_model = config.output.save_merged = true;
      Trainer trainer(golden, config, DeviceKind::cpu);
      const WeightContext context{trainer.model->units(), &trainer.engine->store, trainer.engine->strategy.get(),
                                  trainer.device.get(), trainer.ops.get(), trainer.arena->scratch()};
      init_weights(context, 7, Filled::fresh);
      const double before = trainer.step(1e-2).loss;
      const SafetensorsReader base(golden.directory);
      const std::vector<std::string> folders = output_names(config).saved;
      for (size_t i = 0; i < folders.size(); ++i)
        save_weights(context, mpi_world(), {folders[i], golden.directory, SaveSettings::of(config)[i], &base,
                                            adapter_config({config.model, config.adapter, config}, trainer.model->units())});
      const double adapted = trainer.step(0).loss;
      CHECK(adapted < before - 1e-4);        // else nothing was merged
      const std::string merged_folder = folder / "model";
      const SafetensorsReader merged(merged_folder);
      CHECK(merged.tensors().size() == base.tensors().size() + 1);
      REQUIRE(merged.tensors().count(concat(head, ".weight")) == 1);
      CHECK(same_numbers(base, *base.tensors().find(embeddings), merged, *merged.tensors().find(embeddings)));
      CHECK(!same_numbers(base, *base.tensors().find(embeddings), merged,
                          *merged.tensors().find(concat(head, ".weight"))));
      Golden of_merged(name);
      of_merged.directory = merged_folder;
      Trainer alone(of_merged, config_for(of_merged, Precision::f32_true, "packed"), DeviceKind::cpu);
      for (const Unit* unit : alone.model->units())
        for (const Parameter& parameter : unit->parameters()) CHECK(parameter.aliases.empty());
      CHECK(alone.step(0).loss == doctest::Approx(adapted).epsilon(1e-6));  // two roundings of W + s B A in f32
    }
  }
  TEST_CASE("adapters are saved and merged on the GPU alike") {
    if (mpi_world().size() == 1 && gpu_or_skip("saved adapters on the GPU"))
      for (const char* name : {"lora_all", "lora_blip2"}) check_saved(name, DeviceKind::cuda);
  }
}
