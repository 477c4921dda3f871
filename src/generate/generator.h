// Generator: continuous batching of texts over the slots of a decode program. A prompt is read as soon as a slot is
// free, and a text leaves its slot when it ends. The host reads results some tokens behind the device; while the device
// computes, the host fetches the next requests and reports results.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode/decode_program.h"

namespace blipft {

/// A text to be continued.
struct TextRequest {
  int64_t number = 0;                      ///< keys the random draws, so that they do not depend on the order of texts
  std::vector<int32_t> ids;                ///< ids of the prompt, at least one
  int64_t new_tokens = 1;                  ///< maximum number of new tokens; the text has positions for them
  std::vector<uint8_t> pixels;             ///< u8 [P, P, 3], or the patches of `pictures`; empty if the model reads no picture
  std::vector<int32_t> instruction = {};   ///< empty if the model reads no instruction
  std::vector<PictureSegment> pictures = {};  ///< in the text, if the model reads any there; their patches are `pixels`
};

/// The reason why a text ended.
enum class TextEnd { token, length, stop_string, no_choice };
const char* text_end_name(TextEnd end);    ///< "stop", "length", "stop string", "logits that are no numbers"

struct GeneratedText {
  std::vector<int32_t> ids;                ///< the new ids, including the end token
  /// Sum of the log-probabilities of the new ids, from the model's unchanged logits. With beams the score of the
  /// search: the sum divided by length ^ length_penalty.
  double score = 0;
  TextEnd end = TextEnd::length;
};

struct TextResult {
  int64_t number = 0;
  std::vector<GeneratedText> texts;        ///< best first; a single text without beams
  double seconds = 0;                      ///< seconds since its prompt was read
};

/// Callbacks of the generator.
struct GeneratorCalls {
  /// Returns the next text, or nullopt if there are no more; then it is not called again. Unless generation is
  /// synchronous, it is called in advance. At most one request per slot waits, with its picture in host memory (64 of
  /// 224 x 224: 9.6 MB). run() rethrows an exception of next() when the text would begin.
  std::function<std::optional<TextRequest>()> next;
  /// Called when a text has ended, in the order in which texts end, after the device has received its next work.
  std::function<void(TextResult)> done;
  /// Called after each token with all new ids of the text so far; optional.
  std::function<void(int64_t number, std::span<const int32_t> ids)> grown;
  /// Returns how many new ids to keep if their text ends the answer, else nullopt; optional.
  std::function<std::optional<size_t>(std::span<const int32_t> ids)> stops;
  /// Returns true if `mine` is true on any rank, for strategies whose passes need all ranks; optional.
  std::function<bool(bool mine)> any;
  /// Called before each round of tokens; optional.
  std::function<void()> round;
};

class Generator {
 public:
  /// `returned`: number of texts for each request, at most the number of beams.
  Generator(DecodeProgram& program, int64_t returned, bool synchronous);
  /// Generates all texts. Rethrows exceptions of the callbacks, after the results until then were reported.
  void run(const GeneratorCalls& calls);
  int64_t tokens() const { return tokens_; }  ///< new tokens so far
  /// Returns the milliseconds of a step of one token per slot: the median of the rounds without prompts; 0 if there
  /// were none.
  double step_milliseconds() const;

 private:
  struct Growing {
    bool busy = false;
    int64_t number = 0, prompt = 0;
    uint64_t first_view = 0;               // earlier views show the previous text of this slot
    size_t reported = 0;                       // number of new ids that grown() has received
    int64_t left = 0;                      // tokens until the limit that were not enqueued yet
    int64_t begin_ns = 0;
  };
  void rounds(const GeneratorCalls& calls);
  void fetch(const GeneratorCalls& calls, size_t count);
  void admit(const GeneratorCalls& calls);
  void grow(const GeneratorCalls& calls);
  void look(const GeneratorCalls& calls);
  bool look_at(const GeneratorCalls& calls, const DecodeView& view, size_t text);
  TextResult of_beams(const DecodeView& view, size_t text) const;
  void report_results(const GeneratorCalls& calls);
  int64_t busy() const;

  DecodeProgram& program_;
  int64_t returned_;
  bool synchronous_;                       // the device computes during the call: nothing runs ahead
  std::vector<Growing> texts_;             // one entry per slot, or per group of beams
  std::deque<TextRequest> waiting_;        // requests whose prompts were not read yet
  bool ended_ = false;                     // next() has no more requests
  std::exception_ptr failed_;              // exception of next(), after the waiting requests
  std::vector<TextResult> results_;        // results that were not reported yet
  uint64_t sent_ = 0, seen_ = 0;           // numbers of views
  int64_t tokens_ = 0;
  static constexpr uint64_t kRounds = 4;   // more than the views in flight
  int64_t round_tokens_[kRounds] = {};     // tokens that were enqueued after a view
  int64_t round_ns_ = 0;                   // time of the last view; 0 if a prompt was read since then
  std::vector<double> step_ms_;            // step time of each round without prompts
};

}  // namespace blipft
