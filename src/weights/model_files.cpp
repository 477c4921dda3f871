// Files of a model's folder; see model_files.h.
#include "weights/model_files.h"

#include <filesystem>

#include "blipft/error.h"

namespace blipft {

bool is_input_file(const std::string& name) {
  const std::string kind = std::filesystem::path(name).extension().string();
  if (kind != ".json" && kind != ".txt" && kind != ".jinja" && kind != ".model") return false;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return has("token") || has("processor") || has("vocab") || has("merges") || has("chat_template") || kind == ".model";
}

std::vector<std::string> input_files(const std::string& directory) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error, ignored;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (is_input_file(name)) names.push_back(name);
    if (!name.ends_with("tokenizer") || !entry.is_directory(ignored)) continue;
    for (const auto& inner : fs::directory_iterator(entry.path(), error))
      if (is_input_file(inner.path().filename().string()))
        names.push_back(name + "/" + inner.path().filename().string());
  }
  BLIPFT_USER_CHECK(!error, directory, ": cannot be read: ", error.message());
  return names;
}

}  // namespace blipft
