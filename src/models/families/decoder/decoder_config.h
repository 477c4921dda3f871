// Functions that read config.json of text decoders: the keys that several families share. Defaults are those of
// transformers' configuration classes. Each function throws UserError with file, key, found value and supported values.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/json_fields.h"
#include "models/families/decoder/decoder.h"

namespace blipft {

/// Values of absent keys. kv_heads 0: equal to heads; head_size 0: the hidden size divided by heads.
struct DecoderDefaults {
  int64_t vocabulary, hidden, inner, layers, heads, kv_heads, head_size, positions;
  float norm_eps;
  bool tied = false;
  int64_t padding_id = -1;
};
/// Reads sizes, heads and the keys with the same name in every family. Gives all layers one kind, without a window.
void read_sizes(const JsonFields& fields, const DecoderDefaults& defaults, DecoderConfig& config);
/// Reads the activation that `key` names.
GateActivation read_activation(const JsonFields& fields, const std::string& key, const char* fallback);
/// Reads attention_bias, which applies to q, k, v and the output.
void read_attention_bias(const JsonFields& fields, DecoderConfig& config);
/// Returns for each layer whether it has a window: according to layer_types, or, if that key is absent, to `by_default`
/// of the layer's number.
std::vector<bool> read_sliding(const JsonFields& fields, int64_t layers, const std::function<bool(int64_t)>& by_default);
/// Reads sliding_window; null means 0: no window.
int64_t read_window(const JsonFields& fields, int64_t absent);
void set_windows(DecoderConfig& config, int64_t window, const std::vector<bool>& sliding);
/// Reads rotary positions of all layers. `base`: value of an absent rope_theta; `rotated_part`: see RotarySource.
void read_shared_rotary(const JsonFields& fields, DecoderConfig& config, double base = 10000, double rotated_part = 0);

}  // namespace blipft
