// String functions with the semantics of Python's str, because most reference tools are Python programs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blipft {

/// Returns true for the white space of str.split(), str.strip() and \s.
bool is_python_space(uint32_t code_point);
/// Returns true for \d: a decimal digit of any script.
bool is_decimal_digit(uint32_t code_point);
/// str.split(): returns the non-empty pieces between runs of white space.
std::vector<std::string_view> split_words(std::string_view text);
/// str.split(" "): returns the pieces between blanks, including empty ones; one empty piece for "".
std::vector<std::string_view> split_blanks(std::string_view text);
/// len(str): the number of code points.
int64_t count_characters(std::string_view text);
/// str.replace() for single bytes; `to` may be empty.
std::string replace_all(std::string_view text, char from, std::string_view to);

}  // namespace blipft
