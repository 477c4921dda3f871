// SmolLM 3: some layers have no rotary positions; these layers may have a window.
#include "models/families/decoder/decoder_config.h"
#include "models/families/families.h"

namespace blipft {

namespace {

using RopeKind = DecoderConfig::LayerKind::RopeKind;

void read_layers(const JsonFields& fields, DecoderConfig& config) {
  const int64_t interval = fields.positive("no_rope_layer_interval", 4);
  const auto turns = fields.get<std::vector<int64_t>>("no_rope_layers", {});  // 1: has rotary positions
  const bool listed = fields.has("no_rope_layers");
  BLIPFT_USER_CHECK(!listed || turns.size() == config.kinds.size(), fields.file(), ": ", fields.prefix(),
                    "no_rope_layers: found ", turns.size(), " numbers, expected one for each of the ", config.layers,
                    " layers");
  for (size_t i = 0; i < config.kinds.size(); ++i) {
    const bool turned = listed ? turns[i] != 0 : (static_cast<int64_t>(i) + 1) % interval != 0;
    config.kinds[i].turns = turned ? RopeKind::global : RopeKind::none;
  }
  const bool on = fields.get<bool>("use_sliding_window", false);
  set_windows(config, read_window(fields, 0), read_sliding(fields, config.layers, [&](int64_t i) {
                return on && config.kinds[static_cast<size_t>(i)].turns == RopeKind::none;
              }));
}

DecoderConfig read(const JsonFields& fields) {
  DecoderConfig config{.model_type = "smollm3"};
  read_sizes(fields, {128256, 2048, 11008, 36, 16, 4, 0, 32768, 1e-6f, true, 128004}, config);
  config.activation = read_activation(fields, "hidden_act", "silu");
  read_attention_bias(fields, config);
  config.mlp_bias = fields.get<bool>("mlp_bias", false);
  read_layers(fields, config);
  read_shared_rotary(fields, config, 2e6);
  return config;
}

}  // namespace

Family families::smollm3() {
  Family family{.spec = decoder_spec("smollm3", "SmolLM3ForCausalLM"), .read_decoder = read};
  family.spec.tie.by_default = true;
  return family;
}

}  // namespace blipft
