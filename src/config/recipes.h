// Recipes: the run files that come with the program, by name.
#pragma once

#include <string>

namespace blipft {

/// Returns the run file that a command line's word names: "@qwen3/8b-lora" is inputs/qwen3/8b-lora.yaml of those that came
/// with the program. Other words, and files that are called so, stay as they are. Throws UserError for an unknown name.
std::string recipe_file(const std::string& word);

/// Returns the names of all recipes, sorted, each with the first line of its comment.
std::string recipe_list();

}  // namespace blipft
