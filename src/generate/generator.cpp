// The rounds of generation; see generator.h.
#include "generate/generator.h"

#include <algorithm>
#include <utility>

namespace blipft {

namespace {
constexpr int64_t kTokensOfRound = 8;      // a finished slot computes up to twice this number of unused tokens
}  // namespace

const char* text_end_name(TextEnd end) {
  switch (end) {
    case TextEnd::token: return "stop";
    case TextEnd::length: return "length";
    case TextEnd::stop_string: return "stop string";
    case TextEnd::no_choice: return "logits that are no numbers";
  }
  return "?";
}

Generator::Generator(DecodeProgram& program, int64_t returned, bool synchronous)
    : program_(program), returned_(returned), synchronous_(synchronous),
      texts_(static_cast<size_t>(program.settings().slots / program.settings().beams)) {
  BLIPFT_CHECK(returned >= 1 && returned <= program.settings().beams, returned, " texts of ", program.settings().beams,
               " beams");
}

int64_t Generator::busy() const {
  return std::count_if(texts_.begin(), texts_.end(), [](const Growing& text) { return text.busy; });
}

// Calls next() until `count` requests wait or next() has no more. An exception of next() waits like a request: texts
// that were requested earlier are generated first.
void Generator::fetch(const GeneratorCalls& calls, size_t count) {
  while (waiting_.size() < count && !ended_) {
    try {
      std::optional<TextRequest> request = calls.next();
      if (request) waiting_.push_back(std::move(*request));
      else ended_ = true;
    } catch (...) {
      failed_ = std::current_exception();
      ended_ = true;
    }
  }
}

// Reads prompts until all slots are full or there are no more prompts.
void Generator::admit(const GeneratorCalls& calls) {
  const DecodeProgramSettings& settings = program_.settings();
  for (;;) {
    std::vector<TextRequest> requests;
    std::vector<NewText> read;
    int64_t ids = 0;
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (texts_[i].busy) continue;
      fetch(calls, 1);
      if (waiting_.empty()) {
        if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
        break;
      }
      TextRequest& next = waiting_.front();
      const auto count = static_cast<int64_t>(next.ids.size());
      const auto rows = std::max(count, static_cast<int64_t>(next.instruction.size()));
      if (!program_.fits(static_cast<int64_t>(read.size()) + 1, ids + rows)) break;
      ids += rows;
      const int64_t before = program_.ids_before(count), limit = std::min(settings.max_ids, before + next.new_tokens);
      texts_[i] = {.busy = true, .number = next.number, .prompt = before, .first_view = sent_,
                   .left = limit - before - 1, .begin_ns = unix_ns()};
      requests.push_back(std::move(next));
      waiting_.pop_front();
      read.push_back({.ids = requests.back().ids, .key = requests.back().number, .limit = limit,
                      .slot = static_cast<int64_t>(i) * settings.beams, .instruction = requests.back().instruction,
                      .pictures = requests.back().pictures});
    }
    if (!(calls.any ? calls.any(!read.empty()) : !read.empty())) return;
    for (size_t i = 0; i < read.size(); ++i) read[i].pixels = requests[i].pixels.data();
    program_.read_prompts(read);
    round_ns_ = 0;
  }
}

TextResult Generator::of_beams(const DecodeView& view, size_t text) const {
  const auto beams = static_cast<size_t>(program_.settings().beams), maximum = static_cast<size_t>(view.max_ids);
  TextResult result{.number = texts_[text].number};
  for (size_t b = 0; b < beams && result.texts.size() < static_cast<size_t>(returned_); ++b) {
    const auto length = static_cast<size_t>(view.finished_lengths[text * beams + b]);
    if (length == 0) continue;
    const auto ids = view.finished_ids.subspan((text * beams + b) * maximum, length).subspan(static_cast<size_t>(texts_[text].prompt));
    const std::vector<int32_t>& ends = program_.settings().ends;
    const bool ended = !ids.empty() && std::count(ends.begin(), ends.end(), ids.back()) > 0;
    result.texts.push_back({{ids.begin(), ids.end()}, view.finished_scores[text * beams + b],
                            ended ? TextEnd::token : TextEnd::length});
  }
  return result;
}

// Reads the state of a text from a view. Returns true if the text has ended; its result is then in results_.
bool Generator::look_at(const GeneratorCalls& calls, const DecodeView& view, size_t text) {
  Growing& growing = texts_[text];
  const auto slot = text * static_cast<size_t>(program_.settings().beams), maximum = static_cast<size_t>(view.max_ids);
  const auto seconds = [&] { return static_cast<double>(unix_ns() - growing.begin_ns) * 1e-9; };
  const int32_t done = view.done[slot];
  if (program_.settings().beams > 1) {
    if (done == kRunning) return false;
    TextResult result = of_beams(view, text);
    result.seconds = seconds();
    for (const GeneratedText& one : result.texts) tokens_ += static_cast<int64_t>(one.ids.size());
    results_.push_back(std::move(result));
    return true;
  }
  const auto prompt = static_cast<size_t>(growing.prompt), length = static_cast<size_t>(view.lengths[slot]);
  std::span<const int32_t> ids = view.ids.subspan(slot * maximum, length).subspan(prompt);
  const std::optional<size_t> stays = calls.stops ? calls.stops(ids) : std::nullopt;
  if (stays) ids = ids.first(*stays);
  if (calls.grown && ids.size() > growing.reported) calls.grown(growing.number, ids);
  growing.reported = ids.size();
  if (done == kRunning && !stays) return false;
  if (done == kRunning) program_.stop(static_cast<int64_t>(slot));
  GeneratedText generated{.ids = {ids.begin(), ids.end()}};
  generated.end = stays                ? TextEnd::stop_string
                  : done == kEndToken  ? TextEnd::token
                  : done == kNoChoice  ? TextEnd::no_choice
                                       : TextEnd::length;
  for (size_t i = 0; i < ids.size(); ++i) generated.score += static_cast<double>(view.log_probs[slot * maximum + prompt + i]);
  tokens_ += static_cast<int64_t>(ids.size());
  results_.push_back({growing.number, {std::move(generated)}, seconds()});
  return true;
}

double Generator::step_milliseconds() const {
  if (step_ms_.empty()) return 0;
  std::vector<double> sorted = step_ms_;
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

void Generator::look(const GeneratorCalls& calls) {
  const uint64_t number = seen_++;
  const DecodeView view = program_.view();
  const int64_t now = unix_ns(), before = std::exchange(round_ns_, now);
  const int64_t tokens = round_tokens_[(number + kRounds - 1) % kRounds];  // tokens between the previous view and this one
  if (before > 0 && tokens > 0) step_ms_.push_back(static_cast<double>(now - before) * 1e-6 / static_cast<double>(tokens));
  for (size_t i = 0; i < texts_.size(); ++i)
    if (texts_[i].busy && texts_[i].first_view <= number && look_at(calls, view, i)) texts_[i].busy = false;
}

// Enqueues the tokens of a round: as many as the longest remaining text needs, at most kTokensOfRound, or 1 if the
// device is synchronous or grown() reports each token. With calls.any all ranks must enqueue the same number: the
// maximum if any rank needs a token.
void Generator::grow(const GeneratorCalls& calls) {
  const int64_t maximum = synchronous_ || calls.grown ? 1 : kTokensOfRound;
  int64_t tokens = 0;
  for (const Growing& text : texts_)
    if (text.busy) tokens = std::max(tokens, std::min(maximum, text.left));
  if (calls.any) tokens = calls.any(tokens > 0) ? maximum : 0;  // equal on all ranks
  for (Growing& text : texts_) text.left -= std::min(text.left, tokens);
  program_.decode(tokens);
  round_tokens_[(sent_ - 1) % kRounds] = tokens;
}

// Reports the results so far, in the order in which the texts ended.
void Generator::report_results(const GeneratorCalls& calls) {
  for (TextResult& result : std::exchange(results_, {})) calls.done(std::move(result));
}

void Generator::run(const GeneratorCalls& calls) {
  texts_.assign(texts_.size(), {});
  sent_ = seen_ = 0;
  waiting_.clear();
  results_.clear();
  failed_ = nullptr;
  ended_ = false;
  try {
    rounds(calls);
  } catch (...) {
    try {
      report_results(calls);                         // finished texts are not lost
    } catch (...) {
    }
    throw;
  }
}

void Generator::rounds(const GeneratorCalls& calls) {
  program_.begin();
  for (;;) {
    if (calls.round) calls.round();
    admit(calls);
    const bool mine = busy() > 0;
    if (!(calls.any ? calls.any(mine) : mine)) break;
    program_.read_back();                  // a prompt's first token is read before further tokens are computed
    ++sent_;
    if (synchronous_) {
      look(calls);
      report_results(calls);
    }
    grow(calls);
    if (!synchronous_) {                   // the host works while the device computes
      report_results(calls);
      fetch(calls, texts_.size());
    }
    while (sent_ - seen_ >= DecodeProgram::kViews) look(calls);
  }
  while (seen_ < sent_) look(calls);
  report_results(calls);
}

}  // namespace blipft
