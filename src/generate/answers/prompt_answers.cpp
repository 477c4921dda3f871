// The answers of all ranks; see prompt_answers.h.
#include "generate/answers/prompt_answers.h"

#include <algorithm>

#include "generate/records.h"

namespace blipft {

namespace {

// One text of a result. The ids of all texts are sent in a separate list.
struct TextRecord {
  int64_t sample, ids;
  double score, seconds;
  TextEnd end;
};

}  // namespace

PromptAnswers::PromptAnswers(PromptSet& prompts, const Tokenizer& tokenizer, const GenerateSettings& settings,
                             const World& world, int64_t threads)
    : prompts_(prompts), tokenizer_(tokenizer), settings_(settings), world_(world), threads_(threads), texts_(tokenizer, settings) {}

GeneratorCalls PromptAnswers::calls(const SeePicture& see, const std::function<void(const TextResult&)>& done) {
  GeneratorCalls calls;
  calls.next = prompt_requests(prompts_, settings_, world_.rank(), world_.size(), threads_, see);
  if (!settings_.stop.empty()) calls.stops = [this](std::span<const int32_t> ids) { return texts_.stops(ids); };
  calls.done = [this, done](TextResult result) {
    if (done) done(result);
    results_.push_back(std::move(result));
  };
  return calls;
}

std::vector<TextResult> PromptAnswers::gather() const {
  std::vector<TextRecord> records;
  std::vector<int32_t> ids;
  for (const TextResult& result : results_)
    for (const GeneratedText& text : result.texts) {
      records.push_back({result.number, static_cast<int64_t>(text.ids.size()), text.score, result.seconds, text.end});
      ids.insert(ids.end(), text.ids.begin(), text.ids.end());
    }
  records = gather_records(world_, records);
  ids = gather_records(world_, ids);
  std::vector<TextResult> all;
  auto first = ids.begin();
  for (const TextRecord& one : records) {
    if (all.empty() || all.back().number != one.sample) all.push_back({one.sample, {}, one.seconds});
    const auto end = first + one.ids;
    all.back().texts.push_back({{first, end}, one.score, one.end});
    first = end;
  }
  std::sort(all.begin(), all.end(), [](const TextResult& a, const TextResult& b) { return a.number < b.number; });
  return all;
}

const PromptedSample& PromptAnswers::prompt_of(const TextResult& result) const {
  return prompts_.prompts()[static_cast<size_t>(result.number)];
}

ScoredText PromptAnswers::scored(const TextResult& result) const {
  const PromptedSample& prompt = prompt_of(result);
  return scored_text(prompt, result.number, tokenizer_.decode(prompt.ids), texts_.of(result.texts.at(0).ids), texts_);
}

}  // namespace blipft
