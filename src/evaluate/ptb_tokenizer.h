// The words of captions as the COCO caption metrics count them. This is pycocoevalcap's PTBTokenizer: the tokenizer of
// Stanford CoreNLP 3.4.1 with -lowerCase, without punctuation.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace blipft {

struct PtbRules;

class PtbTokenizer {
 public:
  PtbTokenizer();
  ~PtbTokenizer();
  PtbTokenizer(const PtbTokenizer&) = delete;
  PtbTokenizer& operator=(const PtbTokenizer&) = delete;

  /// Returns all tokens of `text` in lowercase, punctuation included. Line ends count as blanks. A token may contain
  /// U+00A0 (fractions and telephone numbers: "1 1/2"). Not thread-safe: scanner states are cached for later texts.
  std::vector<std::string> tokens(std::string_view text);
  /// Returns the tokens without punctuation, separated by blanks, as pycocoevalcap passes them to its metrics.
  std::string words(std::string_view text);

 private:
  std::unique_ptr<PtbRules> rules_;
};

}  // namespace blipft
