// What files a model's folder has beside its weights.
#pragma once

#include <string>
#include <vector>

namespace blipft {

/// Whether a file beside config.json and weights says how text and pictures become inputs, and outputs text: of a
/// tokenizer (tokenizer.json, special_tokens_map.json, vocab.txt, spiece.model, ...), a processor, a template.
bool is_input_file(const std::string& name);
/// The names of these files in a model's folder, and in folders of tokenizers there ("qformer_tokenizer/vocab.txt").
/// Throws UserError where it cannot be read.
std::vector<std::string> input_files(const std::string& directory);

}  // namespace blipft
