// Splitting text into the words that byte-pair encoding merges within: the patterns of known tokenizers, by hand.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace blipft {

enum class SplitPattern {
  none,    ///< the whole text is one word
  gpt2,    ///< 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  llama3,  ///< (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
           ///< |\s*[\r\n]+|\s+(?!\S)|\s+
  tekken,  ///< [^\r\n\p{L}\p{N}]?U*S+|[^\r\n\p{L}\p{N}]?U+S*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
           ///< with U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], S = [\p{Ll}\p{Lm}\p{Lo}\p{M}]: Mistral's, from NeMo on
  qwen2,   ///< llama3 with \p{N} in place of \p{N}{1,3}
  o200k,   ///< tekken with (?i:'s|'t|'re|'ve|'m|'ll|'d)? behind both kinds of words, and \p{N}{1,3}: GPT-4o's, Phi-4-mini's
  gpt2_digits,  ///< each number a word of its own, gpt2 between them: SmolLM2's
};

/// Qwen 2's regular expression.
extern const std::string_view qwen2_expression;

/// The pattern that this regular expression is, compared character by character; nullopt for any other.
std::optional<SplitPattern> known_pattern(std::string_view expression);

/// Splits well-formed UTF-8; the words together are the text.
std::vector<std::string_view> split_words(std::string_view text, SplitPattern pattern);

}  // namespace blipft
