// Small letters for capitals, in any script: what str.lower() of Python and String.toLowerCase() of Java give.
#pragma once

#include <string>
#include <string_view>

namespace blipft {

/// `text` in small letters, as UTF-8. A capital sigma that ends a word becomes the final sigma.
std::string in_small_letters(std::u32string_view text);
/// `text`, which is UTF-8, in small letters, as UTF-8. Ill-formed parts become U+FFFD.
std::string in_small_letters(std::string_view text);

}  // namespace blipft
