// Run files that a test writes out, and what loading them says.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "blipft/config.h"
#include "blipft/error.h"
#include "support/error_message.h"

namespace blipft::testing {

/// A run file in the temporary directory, removed at the end.
class RunFile {
 public:
  explicit RunFile(const std::string& text) {
    static int64_t count = 0;
    path_ = std::filesystem::temp_directory_path() / concat("blipft_config_", getpid(), "_", count++, ".yaml");
    std::ofstream(path_, std::ios::binary) << text;
  }
  RunFile(const RunFile&) = delete;
  RunFile& operator=(const RunFile&) = delete;
  ~RunFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  std::string name() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// Its lines 1 to 4; a test's own text begins at line 5.
inline const std::string base = "model:\n  path: some/model\ndata:\n  path: some/data\n";

inline Config load(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const RunFile file(text);
  return load_config(file.name(), overrides);
}

/// The message of the UserError that loading throws, with the file's name replaced by "FILE"; "" when none is thrown.
inline std::string message(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const RunFile file(text);
  std::string what = message_of([&] { load_config(file.name(), overrides); });
  for (size_t at; (at = what.find(file.name())) != std::string::npos;) what.replace(at, file.name().size(), "FILE");
  return what;
}

inline std::string after_base(const std::string& text) { return message(base + text); }
inline std::string with_override(const std::string& text) { return message(base, {text}); }

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace blipft::testing
