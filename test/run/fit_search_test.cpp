// --fit: what is proposed against all settings tried one by one.
#include "run/fit_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "run/placement.h"
#include "support/temporary_directory.h"

namespace blipft {
namespace {

using testing::TemporaryDirectory;

// A small model whose positions are enough for 512 tokens.
std::string model_folder() {
  static const TemporaryDirectory folder;
  std::ifstream in("test/golden/llama_mha/config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config["max_position_embeddings"] = 512;
  std::ofstream(folder / "config.json") << config.dump();
  return folder.path.string();
}

Config asked_config() {
  Config config;
  config.file = "run.yaml";
  config.model.path = model_folder();
  config.model.init = "random";            // loading's room would hide what steps take
  config.data.path = "none";
  config.data.max_text_tokens = 512;
  config.data.text_padding = "max";
  config.train.batch_size = 8;
  config.train.accumulate_grad_batches = 8;
  config.train.precision = Precision::bf16_mixed;
  return config;
}

// Every choice of what may lie in the host.
std::vector<std::vector<std::string>> offloads_of(const std::string& act_ckpt, const std::string& reshard) {
  std::vector<std::vector<std::string>> all;
  for (const bool activations : {false, true})
    for (const bool parameters : {false, true})
      for (const bool optimizer : {false, true}) {
        if ((activations && act_ckpt == "none") || (parameters && reshard == "step")) continue;
        std::vector<std::string>& offload = all.emplace_back();
        if (optimizer) offload.push_back("optimizer");
        if (parameters) offload.push_back("parameters");
        if (activations) offload.push_back("activations");
      }
  return all;
}

struct Tried {
  std::string overrides;
  double seconds;
  int64_t bytes;
};

std::vector<Tried> all_tried(const Config& asked, const std::vector<std::pair<std::string, std::string>>& dealings,
                             int64_t ranks) {
  std::vector<Tried> tried;
  const int64_t samples = asked.train.batch_size * asked.train.accumulate_grad_batches;
  for (int64_t batch = 1; batch <= samples; ++batch)
    for (const char* act_ckpt : {"none", "half", "full"})
      for (const auto& [strategy, reshard] : dealings)
        for (const std::vector<std::string>& offload : offloads_of(act_ckpt, reshard)) {
          if (samples % batch != 0) continue;
          Config config = asked;
          config.train.batch_size = batch;
          config.train.accumulate_grad_batches = samples / batch;
          config.train.act_ckpt = act_ckpt;
          config.parallel.strategy = strategy;
          config.parallel.reshard = reshard;
          config.parallel.offload = offload;
          const GroupSizes groups = group_sizes(config, ranks, ranks);
          const std::unique_ptr<Model> model = make_model(config);
          const std::vector<TextShape> shapes = possible_text_shapes(config);
          const StepTime time = estimate_step_time(config, *model, groups, reshard == "step", shapes.back());
          const MemoryPlan plan = plan_memory(config, *model, groups, 0, shapes);
          tried.push_back({fit_overrides(asked, config), time.total(),
                           plan.arena->total_bytes() + bytes_outside_of_arena(config, groups, plan.arena->planned_takes())});
        }
  return tried;
}

const std::vector<std::pair<std::string, std::string>> kAlone = {{"auto", "auto"}};
const std::vector<std::pair<std::string, std::string>> kTogether = {{"auto", "auto"}, {"fsdp", "step"},
                                                                     {"fsdp", "always"}};

// The overrides as a shell would hand them over.
std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    std::erase(word, '\'');
    all.push_back(word);
  }
  return all;
}

}  // namespace

TEST_SUITE("fit search") {
  TEST_CASE("the fastest that fits comes first, then what takes less, for GPUs of any size") {
    const Config asked = asked_config();
    const PlannedTexts texts(asked, make_model(asked)->inputs(), 1);
    for (const int64_t ranks : {1, 4}) {
      CAPTURE(ranks);
      const std::vector<Tried> tried = all_tried(asked, ranks == 1 ? kAlone : kTogether, ranks);
      const auto [least, most] = std::minmax_element(
          tried.begin(), tried.end(), [](const Tried& a, const Tried& b) { return a.bytes < b.bytes; });
      const int64_t spread = most->bytes - least->bytes;
      CHECK(spread > 10000000);
      for (const int64_t gpu : {most->bytes, (most->bytes + 3 * least->bytes) / 4, least->bytes}) {
        CAPTURE(gpu);
        double fastest = 1e9;
        for (const Tried& one : tried)
          if (one.bytes <= gpu) fastest = std::min(fastest, one.seconds);
        const FitResult found = FitSearch(asked, 0, gpu, texts).search(asked, ranks, 6);
        CHECK(found.candidates == static_cast<int64_t>(tried.size()));
        CHECK(!found.nearest);
        REQUIRE(!found.rows.empty());
        CHECK(found.rows.front().time.total() == doctest::Approx(fastest).epsilon(1e-12));
        for (size_t i = 0; i < found.rows.size(); ++i) {
          const FitRow& row = found.rows[i];
          CHECK(row.device_bytes <= gpu);
          CHECK(!row.config.parallel.offload.empty() == (row.host_bytes > 0));
          CHECK(std::any_of(tried.begin(), tried.end(),
                            [&](const Tried& one) { return one.overrides == row.overrides; }));
          if (i == 0) continue;
          CHECK(row.time.total() >= found.rows[i - 1].time.total());
          CHECK(row.device_bytes < found.rows[i - 1].device_bytes);
        }
      }
      const FitResult none = FitSearch(asked, 0, least->bytes - 1, texts).search(asked, ranks, 6);
      CHECK(none.rows.empty());
      REQUIRE(none.nearest);
      // Found by a bound that leaves out the gaps between tensors.
      CHECK(none.nearest->device_bytes <= least->bytes + spread / 10);
    }
  }

  TEST_CASE("what is proposed can be pasted: the run file with it is the proposed config") {
    const TemporaryDirectory folder;
    const std::string file = folder / "run.yaml";
    for (const char* lines : {"train: {batch_size: 2, accumulate_grad_batches: 4}\n",
                              "train: {batch_size: 2, total_batch_size: 32}\n",
                              "train: {batch_size: 8, act_ckpt: full}\n"
                              "parallel: {strategy: fsdp, reshard: step, prefetch_bytes: 4096, offload: [optimizer]}\n",
                              "parallel: {devices: 4}\n"}) {
      CAPTURE(lines);
      std::ofstream(file) << "model: {path: " << model_folder() << ", init: random}\ndata: {path: none}\n" << lines;
      const Config asked = load_config(file, {});
      const PlannedTexts texts(resolve_for_ranks(asked, 4), make_model(asked)->inputs(), 4);
      const FitResult found = FitSearch(asked, 0, int64_t{1} << 40, texts).search(asked, 4, 6);
      REQUIRE(found.rows.size() >= 1);
      for (const FitRow& row : found.rows) {
        CAPTURE(row.overrides);
        const Config pasted = resolve_for_ranks(load_config(file, words(row.overrides)), 4);
        CHECK(to_yaml(pasted) == to_yaml(row.config));
        CHECK_NOTHROW(check_ranks(pasted, 4));
      }
    }
  }

  TEST_CASE("what a run cannot do is not proposed") {
    Config asked = asked_config();
    asked.train.optim = "sgd";
    asked.train.precision = Precision::bf16_true;
    const PlannedTexts texts(asked, make_model(asked)->inputs(), 1);
    const FitSearch search(asked, 0, int64_t{1} << 40, texts);
    const FitResult found = search.search(asked, 1, 100);
    // No states to offload: parameters or not; with checkpointing also activations or not.
    CHECK(found.candidates == 7 * (2 + 4 + 4));
    Config quantised = asked;
    quantised.model.quantize = "nf4";
    CHECK(search.search(quantised, 1, 1).candidates == 0);
    quantised.adapter.kind = "lora";
    const FitResult others = search.search(quantised, 1, 1);
    REQUIRE(others.rows.size() == 1);
    CHECK(others.rows[0].overrides.starts_with("model.quantize=nf4 adapter.kind=lora"));
  }
}

}  // namespace blipft
