// The hub's cache; see hub_cache.h. CACHE/models--ORG--NAME/refs/main contains the hash of the newest download, whose
// files are in snapshots/HASH, as links to blobs/.
#include "weights/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "blipft/error.h"
#include "blipft/shipped_files.h"
#include "io/file.h"
#include "io/paths.h"

namespace blipft {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "models--";

bool is_word(const std::string& text) {
  const auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.'; };
  return !text.empty() && text.front() != '.' && text.front() != '-' && std::all_of(text.begin(), text.end(), plain);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return {};
  const std::string text = value;
  const char* const home = std::getenv("HOME");
  return home != nullptr && text.starts_with("~/") ? home + text.substr(1) : text;
}

}  // namespace

bool is_hub_name(const std::string& text) {
  const size_t slash = text.find('/');
  return slash != std::string::npos && is_word(text.substr(0, slash)) && is_word(text.substr(slash + 1));
}

std::string hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string cache = variable(name); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  const std::string cache = variable("XDG_CACHE_HOME");
  return (cache.empty() ? variable("HOME") + "/.cache" : cache) + "/huggingface/hub";
}

std::string folder_of_model(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) return path;
  if (path.starts_with('@')) {
    const fs::path shape = shipped_file("models/" + path.substr(1));
    return shape.empty() ? path : shape.string();
  }
  if (!is_hub_name(path)) return path;
  std::string folder = kPrefix + path;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path model = fs::path(hub_cache()) / folder;
  try {
    std::string hash = io::read_whole_file((model / "refs/main").string(), 4096);
    while (!hash.empty() && std::isspace(static_cast<unsigned char>(hash.back()))) hash.pop_back();
    const fs::path snapshot = model / "snapshots" / hash;
    const bool whole = is_word(hash) && fs::exists(snapshot / "config.json", ignored);
    return whole ? snapshot.string() : path;
  } catch (const UserError&) {             // no refs/main
    return path;
  }
}

std::string hub_name_of(const std::string& path) {
  const fs::path clean = io::absolute_path(path);
  const fs::path snapshots = clean.parent_path();
  const std::string folder = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !folder.starts_with(kPrefix)) return {};
  std::string name = folder.substr(std::string(kPrefix).size());
  const size_t dashes = name.find("--");
  return dashes == std::string::npos ? name : name.replace(dashes, 2, "/");
}

std::string hub_advice(const std::string& name) {
  return concat("if ", name, " is its name on the hub: the cache, ", hub_cache(), ", has no whole model of it; download it "
                "with\n  hf download ", name, "\n");
}

}  // namespace blipft
