// JSON from files that may be broken: all JSON of this program is parsed here.
//
// nlohmann's parser accepts any depth, but copies, comparisons, output and (in some versions) destruction are
// recursive: deep nesting would crash the program. Therefore depth is limited here for all callers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "blipft/error.h"

namespace blipft::io {

/// Maximum nesting depth of lists and objects; real files have less than ten levels.
constexpr int64_t max_json_depth = 200;
/// Default size limit of a JSON file that is read as a whole.
constexpr int64_t max_json_bytes = int64_t{64} << 20;

/// Parses `text` as JSON. Throws UserError that names `location` (file, or file and line) and the mistake.
/// Json: nlohmann::json or nlohmann::ordered_json. `watch`: see nlohmann's parser callbacks; null: no callback.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& location,
                const typename Json::parser_callback_t& watch = nullptr);
/// Reads a file and parses its content as JSON.
template <class Json = nlohmann::json>
Json read_json_file(const std::string& file, int64_t max_bytes = max_json_bytes);

/// Returns a value for quoting in a message, cut to about a line.
std::string brief(const nlohmann::json& value, size_t maximum = 80);
std::string brief(const nlohmann::ordered_json& value, size_t maximum = 80);

}  // namespace blipft::io
