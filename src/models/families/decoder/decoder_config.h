// Reading config.json of decoders of texts: the parts that several families share. Defaults are those of transformers'
// configuration classes. Each function throws UserError with file, key, found value and what is supported.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/json_fields.h"
#include "models/families/decoder/decoder.h"

namespace blipft {

/// Values of absent keys. kv_heads 0: as many as heads; head_size 0: the hidden size divided by the heads.
struct DecoderDefaults {
  int64_t vocabulary, hidden, inner, layers, heads, kv_heads, head_size, positions;
  float norm_eps;
  bool tied = false;
  int64_t padding_id = -1;
};
/// Reads sizes, heads and the keys that have the same name in every family. All layers are alike then, without a window.
void read_sizes(const JsonFields& fields, const DecoderDefaults& defaults, DecoderConfig& config);
/// Reads the activation that `key` names.
GateActivation read_activation(const JsonFields& fields, const std::string& key, const char* fallback);
/// Reads attention_bias, which is of q, k, v and the output.
void read_attention_bias(const JsonFields& fields, DecoderConfig& config);
/// Returns for each layer whether it has a window: as layer_types says, and without that key as `by_default` says of a layer's
/// number.
std::vector<bool> read_sliding(const JsonFields& fields, int64_t layers, const std::function<bool(int64_t)>& by_default);
/// Reads sliding_window; null means 0, which is none.
int64_t read_window(const JsonFields& fields, int64_t absent);
void set_windows(DecoderConfig& config, int64_t window, const std::vector<bool>& sliding);
/// Reads rotary positions that all layers share. `base`: the value of an absent rope_theta; `rotated_part`: see RotarySource.
void read_shared_rotary(const JsonFields& fields, DecoderConfig& config, double base = 10000, double rotated_part = 0);

}  // namespace blipft
