// What config.json says of a LLaMA or one of its relatives: of the model types llama, mistral, qwen2, qwen3, smollm3,
// phi3 and olmo2.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/families/text/decoder.h"

namespace blipft {

class JsonFields;

struct LlamaConfig : DecoderConfig {
  /// Reads and checks `file`; absent keys have transformers' defaults. Throws UserError naming file, key, found value
  /// and what is supported.
  static LlamaConfig read(const std::string& file);
  /// The same of a part of a file.
  static LlamaConfig read(const JsonFields& fields);
};

// What the reading of all decoders' files shares.

/// Sizes, heads and what every family has under the same name. `kv_heads`, `head_size`: where the file says none, 0: as
/// many as heads, and what the heads divide the hidden size into.
struct DecoderDefaults {
  int64_t vocabulary, hidden, inner, layers, heads, kv_heads, head_size, positions;
  float norm_eps;
  bool tied = false;
  int64_t padding_id = -1;
};
void read_sizes(const JsonFields& fields, const DecoderDefaults& defaults, DecoderConfig& config);
/// The activation that `key` names.
GateActivation read_activation(const JsonFields& fields, const std::string& key, const char* fallback);
/// Whether each layer has a window: layer_types, where the file has it, else what `usual` says of a layer's number.
std::vector<bool> read_sliding(const JsonFields& fields, int64_t layers, const std::function<bool(int64_t)>& usual);

}  // namespace blipft
