// JSON from files that may be broken; see json.h.
#include "io/json.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "io/file.h"

namespace blipft::io {

namespace {

/// ordered_json compares every new key with all earlier keys of its object. This limit keeps the comparisons for one
/// text below one or two seconds.
constexpr int64_t kMaxComparisons = 200'000'000;

/// Refuses nesting that is too deep and, for `ordered` objects, too many keys. Like the parser, this scan looks only at
/// brackets and colons outside of strings; both agree up to the first syntax error in the text.
void check_shape(std::string_view text, const std::string& location, bool ordered) {
  std::vector<int64_t> keys;               // number of keys so far, for each open list or object
  int64_t comparisons = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
    } else if (c == ']' || c == '}') {
      if (!keys.empty()) keys.pop_back();
    } else if (c == '[' || c == '{') {
      keys.push_back(0);
      if (static_cast<int64_t>(keys.size()) > max_json_depth)
        throw UserError(concat(location, ": not usable JSON: at byte ", at + 1, " lists and objects are nested more than ",
                               max_json_depth, " deep; is the file damaged?"));
    } else if (c == ':' && ordered && !keys.empty() && (comparisons += keys.back()++) > kMaxComparisons) {
      throw UserError(concat(location, ": not usable JSON: at byte ", at + 1, " an object has ", keys.back(),
                             " keys and more; is the file damaged?"));
    }
  }
}

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& location, const typename Json::parser_callback_t& watch) {
  check_shape(text, location, std::is_same_v<Json, nlohmann::ordered_json>);
  try {
    return Json::parse(text, watch);
  } catch (const typename Json::exception& error) {
    // The library's message quotes the last token, which may be an unterminated string of any length.
    const auto* mistake = dynamic_cast<const typename Json::parse_error*>(&error);
    const size_t at = mistake && mistake->byte > 0 ? std::min(mistake->byte - 1, text.size()) : text.size();
    const bool is_python = text.substr(at).starts_with("NaN") || text.substr(at).starts_with("Infinity");
    throw UserError(concat(location, ": not valid JSON: ", blipft::brief(error.what(), 200),
                           is_python ? "; NaN and Infinity, which Python writes, are no JSON: write null, or the text "
                                       "where one is expected" : ""));
  }
}

template <class Json>
Json read_json_file(const std::string& file, int64_t max_bytes) {
  return parse_json<Json>(read_whole_file(file, max_bytes), file);
}

using nlohmann::json;
using nlohmann::ordered_json;

std::string brief(const json& value, size_t maximum) {
  return blipft::brief(value.dump(-1, ' ', true, json::error_handler_t::replace), maximum);
}

std::string brief(const ordered_json& value, size_t maximum) {
  return blipft::brief(value.dump(-1, ' ', true, ordered_json::error_handler_t::replace), maximum);
}

template json parse_json<json>(std::string_view, const std::string&, const json::parser_callback_t&);
template ordered_json parse_json<ordered_json>(std::string_view, const std::string&,
                                               const ordered_json::parser_callback_t&);
template json read_json_file<json>(const std::string&, int64_t);
template ordered_json read_json_file<ordered_json>(const std::string&, int64_t);

}  // namespace blipft::io
