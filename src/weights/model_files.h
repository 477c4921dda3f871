// The files of a model folder other than config.json and the weights.
#pragma once

#include <string>
#include <vector>

namespace blipft {

/// Returns true if a file with this name belongs to a tokenizer (tokenizer.json, special_tokens_map.json, vocab.txt,
/// spiece.model, ...), a processor or a chat template.
bool is_input_file(const std::string& name);
/// Returns the names of these files in a model folder, and in its tokenizer folders ("qformer_tokenizer/vocab.txt").
/// Throws UserError if a folder cannot be read.
std::vector<std::string> input_files(const std::string& directory);

}  // namespace blipft
