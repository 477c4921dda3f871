// Tokenizers in SentencePiece's format, tokenizer.model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "blipft/text.h"
#include "text/tokenizer_files.h"

namespace blipft {

/// Returns piece -> id of a model, given as the file's bytes. Throws UserError naming `file` if it is no such model.
std::unordered_map<std::string, int32_t> sentencepiece_vocab(const std::string& model, const std::string& file);

/// `spec.sentencepiece` must be set.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(TokenizerSpec spec);

}  // namespace blipft
