// --fit: what is proposed against all settings tried one by one.
#include "plan/fit/fit_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "engine/placement.h"
#include "engine/settings.h"
#include "plan/batch_choice.h"
#include "support/choice_of.h"
#include "support/golden_files.h"
#include "support/temporary_directory.h"

namespace blipft {
namespace {

using testing::TemporaryDirectory;

// A small model whose positions are enough for 512 tokens.
std::string model_folder() {
  static const TemporaryDirectory folder;
  std::ifstream in(testing::golden_path("llama_mha/config.json"));
  nlohmann::json config = nlohmann::json::parse(in);
  config["max_position_embeddings"] = 512;
  std::ofstream(folder / "config.json") << config.dump();
  return folder.path.string();
}

Config requested_config() {
  Config config;
  config.file = "run.yaml";
  config.model.path = model_folder();
  config.model.init = InitialWeights::random;            // loading's room would hide what steps take
  config.data.path = "none";
  config.data.max_text_tokens = 512;
  config.data.text_padding = TextPadding::max;
  config.steps.batch_size = 8;
  config.steps.accumulate_grad_batches = 8;
  config.train.precision = Precision::bf16_mixed;
  return config;
}

// Every choice of what may lie in the host.
std::vector<std::vector<OffloadedData>> offloads_of(const std::string& act_ckpt, const std::string& reshard) {
  std::vector<std::vector<OffloadedData>> all;
  for (const bool activations : {false, true})
    for (const bool parameters : {false, true})
      for (const bool optimizer : {false, true}) {
        if ((activations && act_ckpt == "none") || (parameters && reshard == "step")) continue;
        std::vector<OffloadedData>& offload = all.emplace_back();
        if (optimizer) offload.push_back(OffloadedData::optimizer);
        if (parameters) offload.push_back(OffloadedData::parameters);
        if (activations) offload.push_back(OffloadedData::activations);
      }
  return all;
}

struct Tried {
  std::string overrides;
  double seconds;
  int64_t bytes;
  Config config = {};
};

std::vector<Tried> all_tried(const Config& requested, const std::vector<std::pair<std::string, std::string>>& dealings,
                             int64_t ranks) {
  std::vector<Tried> tried;
  const int64_t samples = requested.steps.batch_size * requested.steps.accumulate_grad_batches;
  for (int64_t batch = 1; batch <= samples; ++batch)
    for (const char* act_ckpt : {"none", "half", "full"})
      for (const auto& [strategy, reshard] : dealings)
        for (const std::vector<OffloadedData>& offload : offloads_of(act_ckpt, reshard)) {
          if (samples % batch != 0) continue;
          Config config = requested;
          config.steps.batch_size = batch;
          config.steps.accumulate_grad_batches = samples / batch;
          config.train.act_ckpt = choice_of<LayerCheckpointing>(act_ckpt);
          config.parallel.strategy = choice_of<StrategyKind>(strategy);
          config.parallel.reshard = choice_of<ReshardPolicy>(reshard);
          config.parallel.offload = offload;
          const GroupSizes groups = group_sizes(config, ranks, ranks);
          const std::unique_ptr<Model> model = make_model(config);
          const std::vector<TextShape> shapes = possible_text_shapes(config);
          const StepTime time = estimate_step_time(config, *model, groups, reshard == "step", shapes.back());
          const MemoryPlan plan = plan_memory(config, *model, groups, 0, shapes);
          tried.push_back({fit_overrides(requested, config), time.total(),
                           plan.arena->total_bytes() + bytes_outside_of_arena(config, groups, plan.arena->planned_takes()), config});
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
  TEST_CASE("the fastest that fits comes first, then what takes less, for GPUs of any size [slow]") {
    const Config requested = requested_config();
    const PlannedTexts texts(requested, make_model(requested)->inputs(), 1);
    for (const int64_t ranks : {1, 4}) {
      CAPTURE(ranks);
      const std::vector<Tried> tried = all_tried(requested, ranks == 1 ? kAlone : kTogether, ranks);
      const auto [minimum, maximum] = std::minmax_element(
          tried.begin(), tried.end(), [](const Tried& a, const Tried& b) { return a.bytes < b.bytes; });
      const int64_t spread = maximum->bytes - minimum->bytes;
      CHECK(spread > 10000000);
      for (const int64_t gpu : {maximum->bytes, (maximum->bytes + 3 * minimum->bytes) / 4, minimum->bytes}) {
        CAPTURE(gpu);
        double fastest = 1e9;
        for (const Tried& one : tried)
          if (one.bytes <= gpu) fastest = std::min(fastest, one.seconds);
        const FitResult found = FitSearch(requested, 0, gpu, texts, RunModel(requested)).search(requested, ranks, 6);
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
      const FitResult none = FitSearch(requested, 0, minimum->bytes - 1, texts, RunModel(requested)).search(requested, ranks, 6);
      CHECK(none.rows.empty());
      REQUIRE(none.nearest);
      // Found by a bound that leaves out the gaps between tensors.
      CHECK(none.nearest->device_bytes <= minimum->bytes + spread / 10);
    }
  }

  TEST_CASE("train.batch_size: auto is the fastest that fits, with something in the host only where nothing else does [slow]") {
    Config requested = requested_config();
    requested.steps.batch_size = requested.steps.accumulate_grad_batches = 0;
    const PlannedTexts texts(before_choice(requested_config(), 1), make_model(requested)->inputs(), 1);
    for (const int64_t ranks : {1, 4}) {
      CAPTURE(ranks);
      requested.steps.total_batch_size = 64 * ranks;
      requested.parallel.strategy = choice_of<StrategyKind>(ranks == 1 ? "auto" : "fsdp");
      const std::vector<Tried> tried =
          all_tried(requested_config(), ranks == 1 ? kAlone : decltype(kTogether)(kTogether.begin() + 1, kTogether.end()), ranks);
      // The fastest of those that take at most so much; null: there is none.
      const auto fastest = [&](int64_t bytes, bool offloads) {
        const Tried* found = nullptr;
        for (const Tried& one : tried)
          if (one.bytes <= bytes && (offloads || one.config.parallel.offload.empty()) &&
              (!found || one.seconds < found->seconds))
            found = &one;
        return found;
      };
      const auto minimum = [&](bool offloads) {
        int64_t bytes = std::numeric_limits<int64_t>::max();
        for (const Tried& one : tried)
          if (offloads || one.config.parallel.offload.empty()) bytes = std::min(bytes, one.bytes);
        return bytes;
      };
      const int64_t all = int64_t{1} << 40, on_device = minimum(false), in_host = minimum(true);
      REQUIRE(in_host < on_device);
      std::set<std::string> chosen;
      for (const int64_t bytes : {all, 2 * on_device, on_device + on_device / 8, on_device, (on_device + in_host) / 2, in_host}) {
        CAPTURE(bytes);
        const int64_t gpu = (bytes * 100 + 98) / 99;  // with the margin that a choice leaves
        const FitResult found = FitSearch(requested, 0, gpu, texts, RunModel(requested)).choose(ranks, 2);
        const bool offloads = bytes < on_device;
        REQUIRE(!found.rows.empty());
        const FitRow& row = found.rows.front();
        CHECK(row.device_bytes <= bytes);
        CHECK(row.time.total() == doctest::Approx(fastest(bytes, offloads)->seconds).epsilon(1e-12));
        CHECK(row.config.parallel.offload.empty() == !offloads);
        CHECK(samples_of_a_step(row.config, ranks) == 64 * ranks);
        CHECK(to_yaml(resolve_for_ranks(row.config, ranks)) == to_yaml(row.config));
        if (found.rows.size() > 1) CHECK(found.rows[1].time.total() >= row.time.total());
        chosen.insert(ChosenSettings::of(row.config).description());
      }
      CHECK(chosen.size() >= 3);           // less memory, another choice
      const FitResult none = FitSearch(requested, 0, in_host, texts, RunModel(requested)).choose(ranks, 2);
      CHECK(none.rows.empty());
      CHECK(none.nearest);
      CHECK_THROWS_WITH_AS(choose_batch(FitSearch(requested, 0, in_host, texts, RunModel(requested)), requested, ranks, in_host, 0, {}),
                           doctest::Contains("is auto, and no settings that the run file leaves open fit"), UserError);
    }
  }

  TEST_CASE("train.batch_size: auto leaves alone what the run file says, and keeps what an earlier part chose") {
    const TemporaryDirectory folder;
    const std::string file = folder / "run.yaml";
    const std::string begin = "model: {path: " + model_folder() + ", init: random}\ndata: {path: none, max_text_tokens: 512}\n";
    const auto choice = [&](const std::string& lines, int64_t gpu, const ChosenSettings& kept = {}, int64_t ranks = 4) {
      std::ofstream(file) << begin << lines;
      const Config requested = load_config(file, {});
      const PlannedTexts texts(before_choice(requested, ranks), make_model(requested)->inputs(), ranks);
      const FitSearch search(requested, 0, gpu, texts, RunModel(requested));
      return choose_batch(search, requested, ranks, gpu, 0, {kept, ""});
    };
    const int64_t all = int64_t{1} << 40;
    const auto settings = [&](const std::string& lines) { return ChosenSettings::of(choice(lines, all).config); };
    CHECK(settings("train: {total_batch_size: 64}\n") == ChosenSettings{16, 1, LayerCheckpointing::none, ReshardPolicy::automatic, {}});
    CHECK(settings("train: {total_batch_size: 61}\n") == ChosenSettings{16, 1, LayerCheckpointing::none, ReshardPolicy::automatic, {}});
    CHECK(settings("train: {total_batch_size: 64, accumulate_grad_batches: 3}\n") ==
          ChosenSettings{6, 3, LayerCheckpointing::none, ReshardPolicy::automatic, {}});
    CHECK(settings("train: {total_batch_size: 64, act_ckpt: half}\n") == ChosenSettings{16, 1, LayerCheckpointing::half, ReshardPolicy::automatic, {}});
    CHECK(settings("train: {total_batch_size: 64}\nparallel: {strategy: fsdp}\n") ==
          ChosenSettings{16, 1, LayerCheckpointing::none, ReshardPolicy::step, {}});
    CHECK(settings("train: {total_batch_size: 64}\nparallel: {strategy: fsdp, reshard: always}\n") ==
          ChosenSettings{16, 1, LayerCheckpointing::none, ReshardPolicy::always, {}});
    CHECK(settings("train: {total_batch_size: 64}\nparallel: {offload: [optimizer]}\n") ==
          ChosenSettings{16, 1, LayerCheckpointing::none, ReshardPolicy::automatic, {OffloadedData::optimizer}});

    const std::string lines = "train: {total_batch_size: 64}\n";
    const ChosenSettings kept{4, 4, LayerCheckpointing::full, ReshardPolicy::automatic, {}};
    CHECK(ChosenSettings::of(config_values(choice(lines, all, kept).config)) == kept);
    CHECK(choice(lines, all, kept).reason.find("as chosen when the run began") != std::string::npos);
    // One that does not fit any more, or that keys now forbid, is not kept.
    const ChosenSettings whole{64, 1, LayerCheckpointing::none, ReshardPolicy::automatic, {}};
    const BatchChoice first = choice(lines, all, {}, 1);
    REQUIRE(ChosenSettings::of(first.config) == whole);
    const PlannedTexts texts(first.config, make_model(first.config)->inputs(), 1);
    const int64_t tight = FitSearch(first.config, 0, all, texts, RunModel(first.config)).row_of(first.config, 1).device_bytes - 1;
    const BatchChoice anew = choice(lines, tight, whole, 1);
    CHECK(anew.reason.find("; chosen anew, since the 64 samples x 1 micro-batch that the run began with take") !=
          std::string::npos);
    CHECK(ChosenSettings::of(anew.config) != whole);
    CHECK(choice(lines, tight + 1, whole, 1).reason.find("as chosen when the run began") != std::string::npos);
    CHECK(choice("train: {total_batch_size: 64, act_ckpt: none}\n", all, kept).reason.find("chosen anew") !=
          std::string::npos);
    CHECK(choice("train: {total_batch_size: 128}\n", all, kept).reason.find("chosen anew") != std::string::npos);
  }

  TEST_CASE("train.batch_size: auto says what a given act_ckpt costs where the host is needed [slow]") {
    const TemporaryDirectory folder;
    const std::string file = folder / "run.yaml";
    const auto reason = [&](const std::string& act_ckpt, int64_t gib) {
      std::ofstream(file) << "model: {path: share/models/tiny-llama-1.1b, init: random}\ndata: {path: none, max_text_tokens: 512}\n"
                          << "train: {total_batch_size: 32" << act_ckpt << "}\n";
      const Config requested = load_config(file, {});
      const PlannedTexts texts(before_choice(requested, 1), make_model(requested)->inputs(), 1);
      const int64_t gpu = gib << 30;
      return choose_batch(FitSearch(requested, 0, gpu, texts, RunModel(requested)), requested, 1, gpu, 0, {}).reason;
    };
    const std::string costs = concat("; without train.act_ckpt in ", file, ":3: 32 x 1, act_ckpt full, 0.2");
    CHECK(reason(", act_ckpt: none", 10).find(costs) != std::string::npos);
    CHECK(reason("", 10).find("without train.act_ckpt") == std::string::npos);
    CHECK(reason(", act_ckpt: none", 80).find("without train.act_ckpt") == std::string::npos);   // nothing in the host
  }

  TEST_CASE("what is proposed can be pasted: the run file with it is the proposed config") {
    const TemporaryDirectory folder;
    const std::string file = folder / "run.yaml";
    for (const char* lines : {"train: {batch_size: 2, accumulate_grad_batches: 4}\n",
                              "train: {batch_size: 2, total_batch_size: 32}\n",
                              "train: {batch_size: 2, total_batch_size: 30}\n", "train: {total_batch_size: 32}\n",
                              "train: {batch_size: 8, act_ckpt: full}\n"
                              "parallel: {strategy: fsdp, reshard: step, prefetch_bytes: 4096, offload: [optimizer]}\n",
                              "parallel: {devices: 4}\n"}) {
      CAPTURE(lines);
      std::ofstream(file) << "model: {path: " << model_folder() << ", init: random}\ndata: {path: none}\n" << lines;
      const Config requested = load_config(file, {});
      const Config resolved = resolve_for_ranks(requested, 4);
      const PlannedTexts texts(chooses_batch_size(requested) ? before_choice(resolved, 4) : resolved,
                               make_model(requested)->inputs(), 4);
      const FitResult found = FitSearch(requested, 0, int64_t{1} << 40, texts, RunModel(requested)).search(requested, 4, 6);
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
    Config requested = requested_config();
    requested.train.optim = "sgd";
    requested.train.precision = Precision::bf16_true;
    const PlannedTexts texts(requested, make_model(requested)->inputs(), 1);
    const FitSearch search(requested, 0, int64_t{1} << 40, texts, RunModel(requested));
    const FitResult found = search.search(requested, 1, 100);
    // No states to offload: parameters or not; with checkpointing also activations or not.
    CHECK(found.candidates == 7 * (2 + 4 + 4));
    Config quantised = requested;
    quantised.model.quantize = WeightQuantization::nf4;
    CHECK(search.search(quantised, 1, 1).candidates == 0);
    quantised.adapter.kind = AdapterKind::lora;
    const FitResult others = search.search(quantised, 1, 1);
    REQUIRE(others.rows.size() == 1);
    CHECK(others.rows[0].overrides.starts_with("model.quantize=nf4 adapter.kind=lora"));
  }
}

}  // namespace blipft
