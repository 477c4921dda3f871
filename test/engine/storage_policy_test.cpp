// Parameters that model.quantize quantizes, and when it is refused.
#include "engine/storage_policy.h"

#include <doctest/doctest.h>

#include <set>

#include "engine/settings.h"
#include "loading/text_shapes.h"
#include "plan/memory_plan.h"
#include "support/choice_of.h"
#include "support/golden_files.h"

namespace blipft {
namespace {

Config config_of(const char* quantize, const std::vector<std::string>& freeze) {
  Config config;
  config.file = "run.yaml";
  config.model.path = testing::golden_path("blip2_ordinary");
  config.model.quantize = choice_of<WeightQuantization>(quantize);
  config.model.freeze = freeze;
  config.data.max_text_tokens = 12;
  return config;
}

}  // namespace

TEST_SUITE("storage policy") {
  TEST_CASE("matrices of frozen layers are taken; embeddings, head, norms, biases and what is trained are not") {
    const Config config = config_of("nf4", {"vision", "language"});
    const std::unique_ptr<Model> model = make_model(config);
    const std::unique_ptr<StoragePolicy> policy = make_storage_policy(config);
    std::vector<std::string> quantized, left;
    for (const Unit* unit : model->units())
      for (const Parameter& parameter : unit->parameters()) {
        const Format* format = policy->frozen_format(*unit, parameter);
        if (format) CHECK(format->name() == "nf4");
        (format ? quantized : left).push_back(parameter.name);
      }
    const auto has = [](const std::vector<std::string>& names, const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const char* name : {"vision_model.encoder.layers.0.self_attn.qkv.weight",
                             "vision_model.encoder.layers.1.mlp.fc2.weight",
                             "language_model.model.decoder.layers.0.self_attn.k_proj.weight"})
      CHECK(has(quantized, name));
    for (const char* name : {"vision_model.embeddings.patch_embedding.weight",
                             "vision_model.embeddings.position_embedding",
                             "vision_model.encoder.layers.0.self_attn.qkv.bias",
                             "language_model.model.decoder.embed_tokens.weight",
                             "language_model.model.decoder.embed_positions.weight",
                             "language_model.model.decoder.final_layer_norm.weight",
                             "qformer.encoder.layer.0.output_query.dense.weight", "language_projection.weight"})
      CHECK(has(left, name));
  }

  TEST_CASE("model.quantize_groups: the layers of these groups alone") {
    Config config = config_of("int8", {});
    config.adapter.kind = AdapterKind::lora;            // all of the model is frozen
    const auto quantized_groups = [&] {
      const std::unique_ptr<Model> model = make_model(config);
      const std::unique_ptr<StoragePolicy> policy = make_storage_policy(config);
      std::set<std::string> groups;
      for (const Unit* unit : model->units())
        for (const Parameter& parameter : unit->parameters())
          if (policy->frozen_format(*unit, parameter)) groups.insert(unit->group().name);
      return groups;
    };
    CHECK(quantized_groups() == std::set<std::string>{"vision", "qformer", "language_projection", "language"});
    config.model.quantize_groups = {"vision"};
    CHECK(quantized_groups() == std::set<std::string>{"vision"});
    const auto refused = [&](const char* name) {
      config.model.quantize_groups = {name};
      try {
        make_model(config);
      } catch (const UserError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    CHECK(refused("visual").find("run.yaml: model.quantize_groups: found \"visual\", expected some of vision, ") == 0);
    CHECK(refused("adapter").find("has adapter, which is trained") != std::string::npos);
    config.model.quantize = WeightQuantization::none;
    CHECK(refused("vision").find("but quantize is none") != std::string::npos);
    config.model.quantize = WeightQuantization::nf4;
    config.model.path = testing::golden_path("llama_mha");
    CHECK(refused("embeddings").find("holds no layers' matrices") != std::string::npos);
  }

  TEST_CASE("without a frozen layer it is refused") {
    CHECK_NOTHROW(make_model(config_of("none", {})));
    CHECK_NOTHROW(make_model(config_of("int8", {"vision"})));
    CHECK_THROWS_WITH_AS(make_model(config_of("int8", {})),
                         "run.yaml: model.quantize: is int8, but no layer of the model is frozen, and quantised "
                         "weights cannot be trained; name the groups that are not to be trained in model.freeze, or "
                         "set quantize: none", UserError);
  }

  TEST_CASE("offloading of states is refused where there are none") {
    Config config = config_of("none", {});
    config.parallel.offload = {OffloadedData::optimizer};
    CHECK_NOTHROW(make_model(config));
    config.train.optim = "sgd";
    CHECK_THROWS_WITH_AS(make_model(config),
                         "run.yaml: parallel.offload: has optimizer, but train.optim sgd without momentum keeps no "
                         "state and train.precision bf16-true no master weights, so that there is nothing to offload; "
                         "remove it", UserError);
    config.train.precision = Precision::bf16_mixed;
    CHECK_NOTHROW(make_model(config));
    config.train.precision = Precision::bf16_true;
    config.train.momentum = 0.9;
    CHECK_NOTHROW(make_model(config));
  }

  TEST_CASE("offloaded, all states and master weights are planned in the host, and nothing else is") {
    const auto planned = [](bool offload, const char* optim) {
      Config config = config_of("none", {});
      config.train.precision = Precision::bf16_mixed;
      config.train.optim = optim;
      if (offload) config.parallel.offload = {OffloadedData::optimizer};
      const std::unique_ptr<Model> model = make_model(config);
      return plan_memory(config, *model, {1}, 0, possible_text_shapes(config));
    };
    for (const char* optim : {"adamw", "adamw8bit", "lion"}) {
      CAPTURE(optim);
      const MemoryPlan here = planned(false, optim), there = planned(true, optim);
      CHECK(here.arena->host_bytes() == 0);
      CHECK(there.arena->total_bytes() + there.arena->host_bytes() == here.arena->total_bytes());
      for (const PlanEntry& entry : there.arena->peak_entries()) {
        CAPTURE(entry.name);
        const bool moved = entry.name == "master weights" || entry.name.starts_with("exp_avg");
        CHECK((entry.space == MemorySpace::host) == moved);
      }
    }
  }

  TEST_CASE("a plan holds codes and scales instead of weights") {
    const auto planned = [](const char* quantize, const std::string& name) {
      Config config = config_of(quantize, {"vision"});
      config.data.max_text_tokens = 12;
      const std::unique_ptr<Model> model = make_model(config);
      const MemoryPlan plan = plan_memory(config, *model, {1}, 0, possible_text_shapes(config));
      int64_t bytes = 0;
      for (const PlanEntry& entry : plan.arena->peak_entries())
        if (entry.name == name && entry.owner == Owner::parameters) bytes += entry.bytes;
      return bytes;
    };
    const int64_t all = planned("none", "parameters");
    for (auto [name, bits] : {std::pair{"nf4", 4}, {"int8", 8}}) {
      CAPTURE(bits);
      const int64_t quantized = planned(name, concat("parameters as ", name, ": codes"));
      CHECK(quantized > 0);
      // Each of two layers' scales are rounded up to 256 bytes.
      const int64_t scales = planned(name, concat("parameters as ", name, ": scales")) - quantized * 8 / bits / 64 * 4;
      CHECK(scales >= 0);
      CHECK(scales < 2 * 256);
      CHECK(planned(name, "parameters") + quantized * 16 / bits == doctest::Approx(static_cast<double>(all)).epsilon(0.02));
      CHECK(planned("none", concat("parameters as ", name, ": codes")) == 0);
    }
  }
}

}  // namespace blipft
