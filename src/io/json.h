// JSON from files that may be broken: the one way in which this program parses JSON.
//
// nlohmann's parser takes any depth, but copies, comparisons, output and (in some versions) destruction recurse: deep
// nesting would end the program. So depth is limited here, for everybody.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "blipft/error.h"

namespace blipft::io {

/// Lists and objects inside of each other; real files have less than ten.
constexpr int64_t most_json_depth = 200;
/// Of a JSON file that is read as a whole, where nothing else is said.
constexpr int64_t most_json_bytes = int64_t{64} << 20;

/// `text` as JSON. Throws UserError that names `place` (file, or file and line) and what is wrong.
/// Json: nlohmann::json or nlohmann::ordered_json. `watch`: see nlohmann's parser callbacks; null: none.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& place,
                const typename Json::parser_callback_t& watch = nullptr);
/// The content of a file as JSON.
template <class Json = nlohmann::json>
Json read_json_file(const std::string& file, int64_t most_bytes = most_json_bytes);

/// A value as a message quotes it: cut to about a line.
std::string brief(const nlohmann::json& value, size_t most = 80);
std::string brief(const nlohmann::ordered_json& value, size_t most = 80);

}  // namespace blipft::io
