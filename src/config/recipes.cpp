// Recipes; see recipes.h.
#include "config/recipes.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/nearest.h"
#include "blipft/error.h"
#include "blipft/shipped_files.h"

namespace blipft {

namespace fs = std::filesystem;

namespace {

fs::path recipe_folder() {
  const fs::path folder = shipped_file("inputs");
  BLIPFT_USER_CHECK(!folder.empty(), "there are no recipes beside this program (share/blipft/inputs of the folder that it was ",
                    "installed in, or inputs/ of the source tree); give the path of a run file");
  return folder;
}

/// "@qwen3/8b-lora"
std::vector<std::string> recipe_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".yaml") names.push_back("@" + entry.path().lexically_relative(folder).replace_extension().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string first_comment(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line.substr(std::min(line.find_first_not_of("# "), line.size()));
}

}  // namespace

std::string recipe_file(const std::string& word) {
  std::error_code error;
  if (!word.starts_with('@') || fs::exists(word, error)) return word;
  const fs::path folder = recipe_folder();
  const std::vector<std::string> names = recipe_names(folder);
  const std::string near = nearest_name(word, names);
  BLIPFT_USER_CHECK(std::binary_search(names.begin(), names.end(), word), "found \"", brief(word), "\", expected a run file or ",
                    "the name of a recipe", near.empty() ? "" : ": " + near, "; blipft --recipes lists them");
  return (folder / (word.substr(1) + ".yaml")).string();
}

std::string recipe_list() {
  const fs::path folder = recipe_folder();
  const std::vector<std::string> names = recipe_names(folder);
  size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::string text;
  for (const std::string& name : names)
    text += concat(name, std::string(width + 2 - name.size(), ' '), first_comment(folder / (name.substr(1) + ".yaml")), "\n");
  return text;
}

}  // namespace blipft
