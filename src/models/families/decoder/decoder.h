// A decoder of texts as today's families have it: RMSNorms, rotary positions, grouped heads, gated MLPs. A family reads
// its config.json into a DecoderConfig; the model is made of blocks from that.
//
// Parameter groups: embeddings (with a tied head's weight), layers, head (the final norm and an own head's weight).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "blipft/model.h"
#include "models/blocks/attention.h"
#include "models/blocks/linear_lora.h"
#include "models/language/language_model.h"

namespace blipft {

struct DecoderConfig {
  std::string model_type;
  int64_t vocabulary = 0, hidden = 0, inner = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_size = 0;  // heads * head_size need not be the hidden size
  int64_t max_text_tokens = 0;             // positions
  int64_t padding_id = -1;                 // its embedding gets no gradient; -1: none
  float norm_eps = 1e-6f, init_std = 0.02f;
  float attention_dropout = 0;             // of the attention's probabilities: not supported, but where dropout is off
  float branch_dropout = 0;                // of the output of attention and MLP
  bool tied = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool fused_qkv = false, fused_gate_up = false;  // one matrix of the checkpoint holds q, k and v; gate and up
  GateActivation activation = GateActivation::silu;

  /// Names of a layer's norms: before attention and MLP, and after them, inside of the branch. Empty: there is no such norm.
  struct NormNames {
    std::string before_attention = "input_layernorm", after_attention, before_mlp = "post_attention_layernorm", after_mlp;
  };
  NormNames norms;
  /// Of queries and keys: each head by itself, or all heads of a row together.
  enum class HeadNorms { none, each, together };
  HeadNorms head_norms = HeadNorms::none;
  RmsForm norm_form;                       // of all of them

  float score_scale = 0;                   // 0: 1 / sqrt(head_size)
  float score_cap = 0, logit_cap = 0;      // 0: none
  float token_scale = 1;                   // of embedded tokens
  float branch_scale = 1;                  // of what attention and MLP add to the residual stream
  float logit_scale = 1;

  RotaryPositions rotary;                  // the bits that transformers computes in f32
  RotaryPositions local_rotary;            // of layers that say so
  bool rotary_neighbours = false;          // files have the elements of a rotated pair side by side: RowOrder
  /// What differs from layer to layer.
  struct LayerKind {
    enum class Turns { none, global, local };
    int64_t window = 0;                    // keys that a query sees, its own and those before; 0: all
    Turns turns = Turns::global;           // by `rotary`, by `local_rotary`, or not at all
    bool operator==(const LayerKind&) const = default;
  };
  std::vector<LayerKind> kinds;            // [layers]
};

/// Where a decoder stands in a model.
struct DecoderPlace {
  std::string body = "model.", head = "lm_head";  ///< how the names of its tensors begin ("language_model.model.")
  std::string units;                       ///< and those of its units ("language.")
  uint32_t dropout_site = 0;               ///< the first of its dropout sites, two a layer
  int64_t prefix_rows = 0;                 ///< of each sample, before its text
};

/// Adds its units to a model, which `add_unit` does: embeddings, layers, head.
LanguageModel make_decoder_language(const DecoderConfig& config, const DecoderPlace& place,
                                    const ModelSettings& settings,
                                    const std::function<Unit&(const std::string& name)>& add_unit, LoraBuilder& lora);

/// `file`: the config.json that `config` comes from, for messages. `in_files`: where checkpoints have other names than `place`.
std::unique_ptr<Model> make_decoder(DecoderConfig config, const std::string& file, const ModelSettings& settings,
                                    const DecoderPlace& place = {}, const DecoderPlace* in_files = nullptr);

}  // namespace blipft
