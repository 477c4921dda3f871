// Translates Oniguruma's regular expressions, which tokenizer.json uses, to PCRE2's.
//
// Many expressions compile in both but have different meanings: "x{1,3}+" repeats a repetition in Oniguruma and is
// possessive in PCRE2, "\h" is a hexadecimal digit or a space, "&&" an intersection or two characters, and "\s" and
// scripts have different members. So this code parses each construct, and refuses constructs that it does not know to
// be equal. Sets of characters do not depend on PCRE2's version of Unicode: characters are divided into classes that
// the pattern distinguishes, each class becomes one byte, and PCRE2 only matches these bytes.
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
/// and key) begins the message of a UserError about an unsupported construct.
TranslatedPattern translate_pattern(const std::string& expression, const std::string& location);

}  // namespace blipft
