// Files of a model's folder; see model_files.h.
#include "weights/model_files.h"

#include <filesystem>

namespace blipft {

bool is_input_file(const std::string& name) {
  const std::string kind = std::filesystem::path(name).extension().string();
  if (kind != ".json" && kind != ".txt" && kind != ".jinja" && kind != ".model") return false;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return has("token") || has("processor") || has("vocab") || has("merges") || has("chat_template") || kind == ".model";
}

}  // namespace blipft
