// Planning a generation; see print_generation_plan.h.
#include "generate/print_generation_plan.h"

#include <algorithm>
#include <cstdio>

#include "base/memory_text.h"
#include "engine/placement.h"
#include "engine/settings.h"
#include "generate/generation.h"
#include "plan/memory_plan.h"
#include "plan/planned_gpu.h"
#include "prompts/prompt_set.h"
#include "weights/adapter_files.h"

namespace blipft {

namespace {

constexpr int64_t kMostTextsAtOnce = 65535;  // as generate.batch_size
constexpr int kMostRows = 8;

// A generation that is planned, and variants of it.
class PlannedGeneration {
 public:
  PlannedGeneration(const Config& config, int64_t ranks, double gpu_gib)
      : source_(weight_source(config)), config_(source_.config),
        ranks_(ranks > 0 ? ranks : std::max<int64_t>(1, config.parallel.devices)), gpu_(planned_gpu(gpu_gib)),
        model_(make_model(config_, untrained(config_))) {
    BLIPFT_USER_CHECK(!model_->cache_widths().empty(), config_.model.path, ": ", model_->description(), " generates no text");
    check_adapters(config_, model_->units());
    if (has_tokenizer(config_.model.path)) tokenizer_ = load_tokenizer(config_.model.path);
    settings_ = generate_settings(config, config_.model.path, tokenizer_.get(), model_->inputs().vocabulary);
    read_prompts(config);
  }

  bool print_plan() {
    bool fits = false;
    const GenerationPlan plan = choose_generation(config_, *model_, choice(work_), fits);
    std::printf("%s", memory_table(concat("memory of a rank while it generates (", plan.strategy, ")"), *plan.arena).c_str());
    std::printf("outside of the plan: CUDA context, libraries, NCCL, graphs: about %s\n", memory_text(outside(plan)).c_str());
    std::printf("GPU: %s (%s)\n", memory_text(gpu_.bytes).c_str(), gpu_.which.c_str());
    std::printf("%s: %s of up to %lld tokens at once on each of %lld rank(s), keys and values %s, in all %s of %s\n",
                fits ? "fits" : "does not fit", counted(plan.settings.slots / plan.settings.beams, "text").c_str(),
                static_cast<long long>(plan.settings.most_ids), static_cast<long long>(ranks_),
                memory_text(plan.engine->program.cache_bytes()).c_str(),
                memory_text(plan.arena->total_bytes() + outside(plan)).c_str(), memory_text(gpu_.bytes).c_str());
    if (fits) std::printf("largest generate.batch_size that fits: %lld\n", static_cast<long long>(largest(plan.settings.most_ids)));
    return fits;
  }

  // Longer and longer texts, each with as many at once as fit.
  bool print_fit() {
    std::printf("of texts of so many tokens, prompt and answer together, this many at once fit a GPU of %s:\n  %9s  %9s\n",
                memory_text(gpu_.bytes).c_str(), "tokens", "texts");
    const int64_t most = model_->inputs().max_text_tokens;
    bool any = false;
    int rows = 0;
    for (int64_t tokens = std::min(most, context()); rows < kMostRows; ++rows) {
      const int64_t texts = largest(tokens);
      if (texts == 0 && any) tokens = longest(tokens);
      std::printf("  %9lld  %9lld%s\n", static_cast<long long>(tokens), static_cast<long long>(std::max<int64_t>(texts, any)),
                  rows == 0 ? "  (the longest prompt and generate.max_new_tokens)" : tokens == most ? "  (the model's positions)" : "");
      any = any || texts > 0;
      if (texts == 0 || tokens == most) break;
      tokens = std::min(most, 2 * tokens);
    }
    return any;
  }

 private:
  // Where they are not here, as long as texts of the run file may be.
  void read_prompts(const Config& config) {
    const ModelInputs inputs = model_->inputs();
    std::printf("%s\n%s\n", model_->description().c_str(), source_.text.c_str());
    if (tokenizer_ && dataset_exists(generate_path(config))) {
      const PromptSet set = open_prompts(
          config, *tokenizer_, inputs, open_instruction_reader(config.model.path, inputs.instruction, inputs.instruction.max_tokens));
      const auto prompts = static_cast<int64_t>(set.prompts().size());
      work_ = {set.longest(), (prompts + ranks_ - 1) / ranks_, 0, set.longest_instruction()};
      std::printf("%lld prompts of %s, the longest of %lld tokens; %s\n", static_cast<long long>(prompts), set.path().c_str(),
                  static_cast<long long>(set.longest()), settings_.text().c_str());
      return;
    }
    work_.longest_prompt = std::clamp<int64_t>(config.data.max_text_tokens, 1, inputs.max_text_tokens - 1);
    const int64_t samples = config.generate.samples;
    work_.texts = samples > 0 ? (samples + ranks_ - 1) / ranks_ : kMostTextsAtOnce;
    std::printf("assumed: prompts of up to %lld tokens (data.max_text_tokens), since %s is not there; %s\n",
                static_cast<long long>(work_.longest_prompt), tokenizer_ ? generate_path(config).c_str() : "the tokenizer",
                settings_.text().c_str());
  }

  int64_t context() const { return std::min(model_->inputs().max_text_tokens, work_.longest_prompt + settings_.max_new_tokens); }

  int64_t outside(const GenerationPlan& plan) const {
    return bytes_outside_of_arena(config_, plan.strategy == "fsdp" ? GroupSizes(ranks_) : GroupSizes(1), plan.arena->planned_takes());
  }

  GenerationChoice choice(const TextsToGenerate& work) const {
    return {settings_, work, ranks_, 0, true,
            [this](const GenerationPlan& plan) { return plan.arena->total_bytes() + outside(plan) <= gpu_.bytes; }};
  }

  // Whether so many texts of so many tokens fit.
  bool fits(int64_t texts, int64_t tokens) const {
    Config config = config_;
    config.generate.batch_size = texts;
    TextsToGenerate work = work_;
    work.longest_prompt = std::max<int64_t>(1, tokens - settings_.max_new_tokens);
    bool found = false;
    (void)choose_generation(config, *model_, choice(work), found);
    return found;
  }

  // The largest number for which `good` holds, to a 64th; 0: it does not hold for 1.
  template <class Good>
  static int64_t search(int64_t most, const Good& good) {
    if (!good(1)) return 0;
    int64_t low = 1, high = 2;
    while (high <= most && good(high)) low = high, high *= 2;
    high = std::min(high, most + 1);
    while (high - low > std::max<int64_t>(1, low / 64)) {
      const int64_t middle = (low + high) / 2;
      (good(middle) ? low : high) = middle;
    }
    return low;
  }
  int64_t largest(int64_t tokens) const {
    return search(kMostTextsAtOnce, [&](int64_t texts) { return fits(texts, tokens); });
  }
  // Of one text, below `tokens`.
  int64_t longest(int64_t tokens) const {
    return search(tokens, [&](int64_t shorter) { return fits(1, shorter); });
  }

  WeightSource source_;
  Config config_;
  int64_t ranks_;
  PlannedGpu gpu_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  GenerateSettings settings_;
  TextsToGenerate work_;
};

}  // namespace

bool print_generation_plan(const Config& config, int64_t ranks, double gpu_gib, bool fit) {
  PlannedGeneration plan(config, ranks, gpu_gib);
  return fit ? plan.print_fit() : plan.print_plan();
}

}  // namespace blipft
