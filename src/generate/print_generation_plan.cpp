// Planning a generation; see print_generation_plan.h.
#include "generate/print_generation_plan.h"

#include <algorithm>
#include <cstdio>

#include "base/memory_text.h"
#include "engine/placement.h"
#include "engine/run_data.h"
#include "generate/answers/answer_set.h"
#include "generate/answers/choice_set.h"
#include "generate/generation.h"
#include "generate/weight_source.h"
#include "loading/picture_reader.h"
#include "loading/text_shapes.h"
#include "plan/generation_plan.h"
#include "plan/planned_gpu.h"

namespace blipft {

namespace {

constexpr int64_t kMaxTextsAtOnce = 65535;  // as generate.batch_size
constexpr int kMaxRows = 8;

// The plan of a generation, and variants of it.
class PlannedGeneration {
 public:
  PlannedGeneration(const GenerationSource& source, int64_t ranks, double gpu_gib, bool scored)
      : model_(source, true), ranks_(ranks > 0 ? ranks : std::max<int64_t>(1, source.config.parallel.devices)),
        gpu_(planned_gpu(gpu_gib)) {
    std::printf("%s\n%s\n", model_.model->description().c_str(), model_.source.text.c_str());
    const Config held = scored ? with_held_out_of_run(source.config, model_.source) : source.config;
    if (scored) print_samples(held, model_.source);
    read_prompts(held, scored);
  }

  bool print_plan() {
    bool fits = false;
    const MemoryPlan plan = choose_generation(model_.config(), *model_.model, choice(work_), fits);
    std::printf("%s", memory_table(concat("memory of a rank while it generates (", plan.strategy, ")"), *plan.arena).c_str());
    std::printf("outside of the plan: CUDA context, libraries, NCCL, graphs: about %s\n", memory_text(outside(plan)).c_str());
    std::printf("GPU: %s (%s)\n", memory_text(gpu_.bytes).c_str(), gpu_.which.c_str());
    std::printf("%s: %s of up to %lld tokens at once on each of %lld rank(s), keys and values %s, in all %s of %s\n",
                fits ? "fits" : "does not fit", counted(plan.decoding->slots / plan.decoding->beams, "text").c_str(),
                static_cast<long long>(plan.decoding->max_ids), static_cast<long long>(ranks_),
                memory_text(plan.engine->decoder->cache_bytes()).c_str(),
                memory_text(plan.arena->total_bytes() + outside(plan)).c_str(), memory_text(gpu_.bytes).c_str());
    if (fits) std::printf("largest generate.batch_size that fits: %lld\n", static_cast<long long>(largest(plan.decoding->max_ids)));
    return fits;
  }

  // Prints for increasing lengths how many texts fit in parallel.
  bool print_fit() {
    std::printf("number of texts that fit a GPU of %s at once, by tokens of a text (prompt and answer together):\n  %9s  %9s\n",
                memory_text(gpu_.bytes).c_str(), "tokens", "texts");
    const int64_t maximum = model_.max_ids();
    bool any = false;
    int rows = 0;
    for (int64_t tokens = std::min(maximum, context()); rows < kMaxRows; ++rows) {
      const int64_t texts = largest(tokens);
      if (texts == 0 && any) tokens = longest(tokens);
      std::printf("  %9lld  %9lld%s\n", static_cast<long long>(tokens), static_cast<long long>(std::max<int64_t>(texts, any)),
                  rows == 0 ? "  (the longest prompt and generate.max_new_tokens)" : tokens == maximum ? "  (the model's positions)" : "");
      any = any || texts > 0;
      if (texts == 0 || tokens == maximum) break;
      tokens = std::min(maximum, 2 * tokens);
    }
    return any;
  }

 private:
  // Reads the prompts as the generation does. If they are not there, texts have the largest length of the run file.
  void read_prompts(const Config& config, bool scored) {
    const PromptSource source = prompt_source(config, scored);
    const bool there = model_.tokenizer && dataset_exists(source.path);
    if (there && scored && uses_choices(config)) {
      const ChoiceSet set(config, model_);
      work_ = set.work(ranks_);
      std::printf("%zu questions of %s, the longest text of %lld tokens\n", set.questions().size(), set.from().c_str(),
                  static_cast<long long>(work_.longest_text));
    } else if (there) {
      const AnswerSet set(config, model_, scored);
      if (scored) set.check_references(config);
      work_ = set.work(ranks_);
      std::printf("%zu prompts of %s, the longest of %lld tokens; %s\n", set.prompt_set().prompts().size(),
                  set.prompt_set().from().c_str(), static_cast<long long>(set.prompt_set().longest()), model_.settings.text().c_str());
    } else {
      assume_prompts(config, scored, model_.tokenizer ? source.path : "the tokenizer");
    }
  }

  void assume_prompts(const Config& config, bool scored, const std::string& missing) {
    work_.longest_prompt = config.data.max_text_tokens;
    if (const auto reader = open_picture_reader(config, model_.inputs)) {
      work_.pictures = largest_picture(model_.inputs.patches, reader->max_cells());
      work_.longest_prompt += work_.pictures.rows;
    }
    work_.longest_prompt = std::clamp<int64_t>(work_.longest_prompt, 1, model_.max_ids());
    if (scored) work_.longest_text = work_.longest_prompt;
    const int64_t samples = config.generate.samples;
    work_.texts = samples > 0 ? (samples + ranks_ - 1) / ranks_ : kMaxTextsAtOnce;
    std::printf("assumed: prompts of up to %lld tokens (data.max_text_tokens), since %s is not there; %s\n",
                static_cast<long long>(work_.longest_prompt), missing.c_str(), model_.settings.text().c_str());
  }

  int64_t context() const {
    const int64_t before = model_.inputs.has_source() ? 1 : work_.longest_prompt;
    const int64_t answer = model_.settings.max_ids(model_.inputs, work_.longest_prompt) - before;
    return std::min(model_.max_ids(), work_.longest_prompt + answer);
  }

  int64_t outside(const MemoryPlan& plan) const {
    return bytes_outside_of_arena(model_.config(), plan.strategy == StrategyKind::fsdp ? GroupSizes(ranks_) : GroupSizes(1),
                                  plan.arena->planned_takes());
  }

  GenerationChoice choice(const TextsToGenerate& work) const {
    return {model_.settings, work, ranks_, true,
            [this](const MemoryPlan& plan) { return plan.arena->total_bytes() + outside(plan) <= gpu_.bytes; }};
  }

  // Returns true if `texts` texts with `tokens` tokens each fit in memory.
  bool fits(int64_t texts, int64_t tokens) const {
    Config config = model_.config();
    config.generate.batch_size = texts;
    TextsToGenerate work = work_;
    work.longest_prompt = std::max<int64_t>(1, tokens - (model_.settings.max_length > 0 ? 1 : model_.settings.max_new_tokens));
    bool found = false;
    (void)choose_generation(config, *model_.model, choice(work), found);
    return found;
  }

  // Returns the largest number for which `good` is true, to a precision of 1/64; 0 if good(1) is false.
  template <class Good>
  static int64_t search(int64_t maximum, const Good& good) {
    if (!good(1)) return 0;
    int64_t low = 1, high = 2;
    while (high <= maximum && good(high)) low = high, high *= 2;
    high = std::min(high, maximum + 1);
    while (high - low > std::max<int64_t>(1, low / 64)) {
      const int64_t middle = (low + high) / 2;
      (good(middle) ? low : high) = middle;
    }
    return low;
  }
  int64_t largest(int64_t tokens) const {
    return search(kMaxTextsAtOnce, [&](int64_t texts) { return fits(texts, tokens); });
  }
  // Returns the largest length up to `tokens` with which one text fits in memory.
  int64_t longest(int64_t tokens) const {
    return search(tokens, [&](int64_t shorter) { return fits(1, shorter); });
  }

  GenerationModel model_;
  int64_t ranks_;
  PlannedGpu gpu_;
  TextsToGenerate work_;
};

}  // namespace

bool print_generation_plan(const Config& config, const GenerationPlanRequest& request) {
  const GenerationSource source = generation_source(config);
  print_notes(source.config);
  PlannedGeneration plan(source, request.ranks, request.gpu_gib, request.scored);
  return request.fit ? plan.print_fit() : plan.print_plan();
}

}  // namespace blipft
