// Translates Oniguruma's regular expressions, which tokenizer.json uses, to PCRE2's.
//
// The two differ in ways that compile without a word: "x{1,3}+" repeats a repetition in one and is possessive in the
// other, "\h" is a digit or a space, "&&" an intersection or two characters, "\s" and scripts have other members. So
// each construct is read here, and what is not known to be the same is refused. Sets of characters do not depend on
// PCRE2's version of Unicode: each character that the pattern tells apart from others becomes a byte; PCRE2 sees bytes
// alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blipft {

struct TranslatedPattern {
  std::string pcre2;             ///< the pattern for PCRE2 without UTF
  std::vector<uint8_t> byte_of;  ///< [code points]: the byte of each code point's class
};

/// `expression`: well-formed UTF-8, in Oniguruma's default syntax (Ruby's, with a few other options). `location` (file
/// and key) begins the message of a UserError about what is not supported.
TranslatedPattern translate_pattern(const std::string& expression, const std::string& location);

}  // namespace blipft
