// Run files that a test writes out, and what loading them says.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "blipft/config.h"
#include "blipft/error.h"
#include "support/approved_messages.h"
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


/// A message in which "FILE" stands for the file's name.
inline std::string about_file(std::string message, const std::string& name) {
  for (size_t at; (at = message.find(name)) != std::string::npos;) message.replace(at, name.size(), "FILE");
  return message;
}
/// The message of the UserError that loading throws; "" when none is thrown.
inline std::string any_message(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const RunFile file(text);
  return about_file(message_of([&] { load_config(file.name(), overrides); }), file.name());
}
/// Returns the same message after it was approved. The wording of a YAML error is the library's.
inline std::string message(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const std::string what = any_message(text, overrides);
  return contains(what, "not valid YAML") || contains(what, "as YAML has it") ? what : approved(what);
}

inline std::string after_base(const std::string& text) { return message(base + text); }
inline std::string with_override(const std::string& text) { return message(base, {text}); }

}  // namespace blipft::testing
