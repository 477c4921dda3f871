// Lower case in any script, equal to Python's str.lower() and Java's String.toLowerCase().
#pragma once

#include <string>
#include <string_view>

namespace blipft {

/// Returns `text` in lower case, as UTF-8. A capital sigma that ends a word becomes the final sigma.
std::string in_small_letters(std::u32string_view text);
/// Returns UTF-8 `text` in lower case, as UTF-8. Ill-formed parts become U+FFFD.
std::string in_small_letters(std::string_view text);

}  // namespace blipft
