// Folders of small tokenizers for the tests: the golden ones, and copies that a test changes.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "blipft/text.h"
#include "support/error_message.h"
#include "support/golden_files.h"
#include "support/temporary_directory.h"

namespace blipft::testing {

/// The folder of a golden tokenizer, or a file beside these folders.
inline std::string golden_tokenizer(const std::string& name) { return golden_path("tokenizer/" + name); }

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), path.string());
  return nlohmann::json::parse(in);
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A copy of a golden tokenizer that a test may spoil; removed at the end.
class TokenizerDirectory {
 public:
  explicit TokenizerDirectory(const std::string& from = "") {
    const auto whole = std::filesystem::copy_options::recursive;
    if (!from.empty()) std::filesystem::copy(golden_tokenizer(from), folder_.path, whole);
  }
  std::filesystem::path operator/(const std::string& name) const { return folder_.path / name; }
  std::string string() const { return folder_.path.string(); }
  /// Rewrites a JSON file of the directory.
  template <class Change>
  void change(const std::string& name, Change&& change) const {
    nlohmann::json json = read_json(folder_.path / name);
    change(json);
    write_text(folder_.path / name, json.dump());
  }

 private:
  TemporaryDirectory folder_;
};

/// The message of the UserError that loading gives; empty where it gives none.
inline std::string load_error(const TokenizerDirectory& directory) {
  return message_of([&] { load_tokenizer(directory.string(), {}); });
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace blipft::testing
