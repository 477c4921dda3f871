// The words of captions as the COCO caption metrics count them: pycocoevalcap's PTBTokenizer, which is the tokenizer of
// Stanford CoreNLP 3.4.1 with -lowerCase, less punctuation.
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

  /// Every token of `text`, punctuation too, in small letters. Line ends count as blanks. A token may hold U+00A0
  /// (fractions and telephone numbers: "1 1/2"). Not thread-safe: what it learns of the rules stays for the next text.
  std::vector<std::string> tokens(std::string_view text);
  /// The tokens that count, with blanks between them: what pycocoevalcap gives to its metrics.
  std::string words(std::string_view text);

 private:
  std::unique_ptr<PtbRules> rules_;
};

}  // namespace blipft
