// Regular expressions of tokenizer.json, and the splitting of texts by them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace blipft {

/// A pattern in Oniguruma's syntax. Thread-safe.
class Pattern {
 public:
  /// `location` (file and key) begins messages. Throws UserError if the pattern is not supported (see
  /// pattern_translator.h).
  Pattern(const std::string& expression, std::string location);
  ~Pattern();

  /// Returns [begin, end) in bytes of each successive match in well-formed UTF-8, as Oniguruma's search finds them.
  /// Throws UserError if this takes too many steps.
  std::vector<std::pair<size_t, size_t>> matches(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

/// How matches of the pattern split a text. The names are those of tokenizer.json.
struct SplitStep {
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  std::shared_ptr<const Pattern> pattern;
  Behavior behavior = Behavior::isolated;
  bool inverted = false;  ///< true: matched and unmatched parts are exchanged
};

/// Returns the words of a text after all steps, in order; no word is empty.
std::vector<std::string_view> split(std::string_view text, const std::vector<SplitStep>& steps);

/// The pattern of GPT-2, which its files do not contain.
extern const char* const gpt2_expression;

}  // namespace blipft
