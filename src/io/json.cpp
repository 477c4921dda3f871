// JSON from files that may be broken; see json.h.
#include "io/json.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "io/file.h"

namespace blipft::io {

namespace {

/// Refuses nesting that is too deep. Up to the first mistake in the text this sees what the parser sees: brackets
/// outside of strings.
void check_depth(std::string_view text, const std::string& place) {
  int64_t depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
    } else if (c == ']' || c == '}') {
      --depth;
    } else if ((c == '[' || c == '{') && ++depth > most_json_depth) {
      throw UserError(concat(place, ": not usable JSON: at byte ", at + 1, " lists and objects are nested more than ",
                             most_json_depth, " deep; is the file damaged?"));
    }
  }
}

using nlohmann::json;
using nlohmann::ordered_json;

/// An ordered object looks through its keys for every key it takes: a second or two for all objects of a file, at most.
constexpr int64_t kMostComparisons = 200'000'000;

/// Refuses objects of too many keys, and passes on what `watch` says.
class KeyCount {
 public:
  KeyCount(const std::string& place, const ordered_json::parser_callback_t& watch) : place_(place), watch_(watch) {}
  bool operator()(int depth, ordered_json::parse_event_t event, ordered_json& value) {
    using Event = ordered_json::parse_event_t;
    if (event == Event::object_start) keys_.push_back(0);
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && (comparisons_ += keys_.back()++) > kMostComparisons)
      throw UserError(concat(place_, ": not usable JSON: an object of ", keys_.back(),
                             " keys and more; is the file damaged?"));
    return !watch_ || watch_(depth, event, value);
  }

 private:
  const std::string& place_;
  const ordered_json::parser_callback_t& watch_;
  std::vector<int64_t> keys_;              // of the objects that are open
  int64_t comparisons_ = 0;
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& place, const typename Json::parser_callback_t& watch) {
  check_depth(text, place);
  try {
    if constexpr (std::is_same_v<Json, ordered_json>) return Json::parse(text, KeyCount(place, watch));
    else return Json::parse(text, watch);
  } catch (const typename Json::exception& error) {
    // The library quotes the last token, which may be a string without end.
    throw UserError(concat(place, ": not valid JSON: ", blipft::brief(error.what(), 200)));
  }
}

template <class Json>
Json read_json_file(const std::string& file, int64_t most_bytes) {
  return parse_json<Json>(read_whole_file(file, most_bytes), file);
}

std::string brief(const json& value, size_t most) {
  return blipft::brief(value.dump(-1, ' ', true, json::error_handler_t::replace), most);
}

std::string brief(const ordered_json& value, size_t most) {
  return blipft::brief(value.dump(-1, ' ', true, ordered_json::error_handler_t::replace), most);
}

template json parse_json<json>(std::string_view, const std::string&, const json::parser_callback_t&);
template ordered_json parse_json<ordered_json>(std::string_view, const std::string&,
                                               const ordered_json::parser_callback_t&);
template json read_json_file<json>(const std::string&, int64_t);
template ordered_json read_json_file<ordered_json>(const std::string&, int64_t);

}  // namespace blipft::io
