// Generator: texts through the slots of a decode program. Prompts are read as slots become free, and texts leave theirs
// when they end; the host reads behind what the device computes. While the device computes, the host asks for the next
// requests and tells results.
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
  int64_t number = 0;                      ///< keys its random draws; whatever order texts come in
  std::vector<int32_t> ids;                ///< of the prompt, at least one
  int64_t new_tokens = 1;                  ///< at most so many; the text has room for them
  std::vector<uint8_t> pixels;             ///< u8 [P, P, 3], where the model reads a picture
  std::vector<int32_t> instruction = {};   ///< where the model reads one
};

/// Why a text ended.
enum class TextEnd { token, length, stop_string, no_choice };
const char* text_end_name(TextEnd end);    ///< "stop", "length", "stop string", "logits that are no numbers"

struct GeneratedText {
  std::vector<int32_t> ids;                ///< the new ones, with the end's
  /// Sum of the new ids' log probabilities, of the logits as the model gave them; of beams the score of the search: their
  /// sum over length ^ length_penalty.
  double score = 0;
  TextEnd end = TextEnd::length;
};

struct TextResult {
  int64_t number = 0;
  std::vector<GeneratedText> texts;        ///< best first; one without beams
  double seconds = 0;                      ///< since its prompt was read
};

/// Callbacks of the generator.
struct GeneratorCalls {
  /// The next text; none: there are no more, and it is not called again. Unless generation is synchronous, it is called
  /// ahead of need. At most as many requests wait as there are texts at once, with their pictures in host memory (64 of
  /// 224 x 224: 9.6 MB). An exception from next() is rethrown by run() when the text would begin.
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
  /// `returned`: texts of each request, at most as many as there are beams.
  Generator(DecodeProgram& program, int64_t returned, bool synchronous);
  /// Throws what a call throws; the results until then have been told.
  void run(const GeneratorCalls& calls);
  int64_t tokens() const { return tokens_; }  ///< new ones so far
  /// How long a step of one token a slot takes: the median of the rounds in which no prompt was read, in milliseconds;
  /// 0 where there was none.
  double step_milliseconds() const;

 private:
  struct Growing {
    bool busy = false;
    int64_t number = 0, prompt = 0;
    uint64_t first_view = 0;               // views before it show the text that was here before
    size_t told = 0;                       // new ids that grown() knows
    int64_t left = 0;                      // tokens until its limit that were not asked for yet
    int64_t begin_ns = 0;
  };
  void rounds(const GeneratorCalls& calls);
  void fetch(const GeneratorCalls& calls, size_t count);
  void admit(const GeneratorCalls& calls);
  void grow(const GeneratorCalls& calls);
  void look(const GeneratorCalls& calls);
  bool look_at(const GeneratorCalls& calls, const DecodeView& view, size_t text);
  TextResult of_beams(const DecodeView& view, size_t text) const;
  void tell(const GeneratorCalls& calls);
  int64_t busy() const;

  DecodeProgram& program_;
  int64_t returned_;
  bool synchronous_;                       // the device computes while it is called: nothing runs ahead
  std::vector<Growing> texts_;             // of each slot, or group of beams
  std::deque<TextRequest> waiting_;        // asked for, and not read yet
  bool ended_ = false;                     // no more are asked for
  std::exception_ptr failed_;              // what next() threw, behind those that wait
  std::vector<TextResult> results_;        // of texts that have ended, not told yet
  uint64_t sent_ = 0, seen_ = 0;           // views
  int64_t tokens_ = 0;
  static constexpr uint64_t kRounds = 4;   // more than there are views under way
  int64_t round_tokens_[kRounds] = {};     // enqueued behind a view
  int64_t round_ns_ = 0;                   // when the last view was seen; 0: a prompt was read since
  std::vector<double> step_ms_;            // of each round without a reading
};

}  // namespace blipft
