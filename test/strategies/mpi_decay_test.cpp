// train.decay_norms_and_biases: which parameters weight decay spares, in every family, optimizer and strategy.
#include <regex>

#include "strategies/strategy_harness.h"

using namespace blipft;
using namespace blipft::testing;

namespace {

// transformers' get_decay_parameter_names(): its patterns, and the names of modules that are a torch.nn.LayerNorm.
bool is_spared(const std::string& name) {
  static const std::regex patterns("bias|layernorm|rmsnorm|(^|\\.)norm($|\\.)|_norm($|\\.)|layer_norm[12]",
                                   std::regex::icase);
  return std::regex_search(name, patterns);
}

// One step: without decay, with decay of all, with decay of what is not spared. The gradient is the same.
void check_decay(const std::string& family, const std::string& optim, const Deal* deal) {
  Job job = make_job(family);
  job.steps = 1;
  job.config.train.optim = optim;
  job.config.train.lr = 1e-2;
  const auto trained = [&](double decay, bool all) {
    job.config.train.weight_decay = decay;
    job.config.train.decay_norms_and_biases = all;
    return deal ? train_together(job, *deal) : train_alone(job);
  };
  const Outcome none = trained(0, true), all = trained(0.5, true), some = trained(0.5, false);
  int64_t spared = 0, decayed = 0, differ = 0;
  const std::unique_ptr<Model> model = job.make_model();
  for (const Unit* unit : model->units()) {
    const auto u = static_cast<size_t>(unit->index);
    for (const Parameter& parameter : unit->parameters()) {
      CAPTURE(parameter.name);
      const bool spares = is_spared(parameter.name);
      ++(spares ? spared : decayed);
      const std::vector<float>& expected = (spares ? none : all).weights[u];
      for (int64_t e = parameter.offset; e < parameter.offset + parameter.numel(); ++e) {
        const auto i = static_cast<size_t>(e);
        if (some.weights[u][i] != expected[i]) ++differ;
      }
    }
  }
  CHECK(differ == 0);
  CHECK(spared > 2);
  CHECK(decayed > 2);
}

}  // namespace

TEST_SUITE("mpi decay") {
  TEST_CASE("norms and biases are spared as transformers' Trainer spares them, in every family") {
    for (const char* family : {"llama_qwen2", "modern_gemma3", "modern_qwen3", "modern_olmo2", "modern_phi3", "t5_v11", "blip2_odd",
                               "instructblip_odd", "t5_instructblip"}) {
      CAPTURE(family);
      check_decay(family, "adamw", nullptr);
    }
  }

  TEST_CASE("with every optimizer, and in shards that begin anywhere") {
    const Deal sharded{"fsdp"};
    for (const char* optim : {"adamw", "adamw8bit", "lion", "sgd"}) {
      CAPTURE(optim);
      check_decay("blip2_odd", optim, &sharded);
    }
    check_decay("t5_v11", "adamw", &sharded);
  }
}
