// A data set's prompts; see answer_set.h.
#include "generate/answers/answer_set.h"

#include <algorithm>
#include <deque>
#include <future>
#include <memory>
#include <semaphore>

#include "engine/decode/decode_shape.h"
#include "loading/picture_reader.h"
#include "loading/sample_text.h"

namespace blipft {

namespace {

// Permission for a thread to read; limits the number of parallel readers.
class Turn {
 public:
  explicit Turn(std::counting_semaphore<>& free) : free_(free) { free_.acquire(); }
  ~Turn() { free_.release(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::counting_semaphore<>& free_;
};

// Pictures that threads read in advance, in order.
struct Ahead {
  Ahead(size_t first, size_t ranks, int64_t threads, SeePicture seen)
      : next(first), step(ranks), maximum(std::max(static_cast<size_t>(threads), static_cast<size_t>(kMaxPrompts))),
        free_threads(threads), see(std::move(seen)) {}
  size_t next, step, maximum;
  std::counting_semaphore<> free_threads;  // these two must outlive the readers
  SeePicture see;
  std::deque<std::pair<size_t, std::future<std::vector<uint8_t>>>> reading;
};

}  // namespace

AnswerSet::AnswerSet(const Config& config, const GenerationModel& model, bool scored)
    : model_(model), samples_(config.generate.samples),
      prompts_(open_prompts(config, *model.tokenizer, model.inputs, model.instructions, scored)) {
  most_.pictures = prompts_.pictures();
  if (scored) read_texts();
}

TextsToGenerate AnswerSet::work(int64_t ranks) const {
  return {std::max(prompts_.longest(), longest_source_), (static_cast<int64_t>(prompts_.prompts().size()) + ranks - 1) / ranks, longest_text_,
          std::max(prompts_.longest_instruction(), longest_instruction_), most_.pictures};
}

void AnswerSet::read_texts() {
  const Dataset& dataset = prompts_.dataset();
  const int64_t count = samples_ > 0 ? std::min(samples_, dataset.size()) : dataset.size();
  for (int64_t i = 0; i < count; ++i) {
    try {
      texts_.push_back(tokenize(dataset.read(i), *model_.tokenizer, model_.max_ids(), model_.inputs.text.vocabulary,
                                model_.instructions, model_.inputs.decoder_start, prompts_.reader()));
    } catch (const UserError& error) {
      prompts_.leave_out_everywhere(error.what());
      texts_.emplace_back();                 // keeps the indices of later samples; a text without targets is not scored
      continue;
    }
    longest_text_ = std::max(longest_text_, texts_.back().size());
    most_.include({0, 0, pictures_of(texts_.back().pictures, model_.inputs.patches)});
    longest_source_ = std::max(longest_source_, texts_.back().source_size());
    longest_instruction_ = std::max(longest_instruction_, static_cast<int64_t>(texts_.back().instruction.size()));
  }
}

void AnswerSet::check_references(const Config& config) const {
  const std::vector<PromptedSample>& prompts = prompts_.prompts();
  const bool any = std::any_of(prompts.begin(), prompts.end(), [](const PromptedSample& one) { return !one.references.empty(); }) ||
                   std::any_of(texts_.begin(), texts_.end(), [](const TokenizedText& one) { return one.has_target(); });
  const std::string& key = prompts_.key();
  BLIPFT_USER_CHECK(any, location_of(config, key), ": ", key, ": ", prompts_.path(), ": none of its ",
                    counted(static_cast<int64_t>(prompts.size()), "sample"), " has a reference, a text that would be right, and "
                    "--evaluate scores against these; write them (of pictures a metadata.jsonl, or a .txt beside each), or take "
                    "--generate, which scores nothing");
}

std::function<std::optional<TextRequest>()> prompt_requests(PromptSet& set, const GenerateSettings& settings, int64_t rank,
                                                            int64_t ranks, int64_t threads, const SeePicture& see) {
  const auto ahead =
      std::make_shared<Ahead>(static_cast<size_t>(rank), static_cast<size_t>(ranks), std::max<int64_t>(1, threads), see);
  return [&set, &settings, ahead]() -> std::optional<TextRequest> {
    const std::vector<PromptedSample>& prompts = set.prompts();
    const ModelInputs& inputs = set.inputs();
    for (;;) {
      while (ahead->reading.size() < ahead->maximum && ahead->next < prompts.size()) {
        const size_t i = ahead->next;
        ahead->next += ahead->step;
        const auto read = [&set, &shared = *ahead, i, sample = prompts[i].picture]() -> std::vector<uint8_t> {
          if (!set.inputs().has_picture() && !set.reader()) return {};
          const Turn turn(shared.free_threads);
          if (set.reader()) {
            const PromptedSample& prompt = set.prompts()[i];
            if (shared.see && sample >= 0) shared.see(static_cast<int64_t>(i), set.reader()->decoded(prompt.picture_files.front()));
            return set.patches(prompt);
          }
          const Image picture = set.picture(sample);
          if (shared.see) shared.see(static_cast<int64_t>(i), picture);
          return set.pixels(picture);
        };
        const auto policy = inputs.has_picture() || set.reader() ? std::launch::async : std::launch::deferred;
        ahead->reading.emplace_back(i, std::async(policy, read));
      }
      if (ahead->reading.empty()) return std::nullopt;
      auto [i, pixels] = std::move(ahead->reading.front());
      ahead->reading.pop_front();
      try {
        const int64_t tokens = settings.new_tokens(inputs, static_cast<int64_t>(prompts[i].ids.size()));
        TextRequest request{static_cast<int64_t>(i), prompts[i].ids, tokens, pixels.get(), prompts[i].instruction, prompts[i].pictures};
        if (set.reader()) set.reader()->set_patches(request.pictures, request.pixels.data());
        return request;
      } catch (const UserError& error) {
        set.leave_out(error.what());
      }
    }
  };
}

}  // namespace blipft
