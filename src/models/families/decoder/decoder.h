// A text decoder as in current families: RMSNorms, rotary positions, grouped heads, gated MLPs. A family reads its
// config.json into a DecoderConfig, from which the model is built.
//
// Parameter groups: embeddings (with a tied head's weight), layers, head (the final norm and an untied head's weight).
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
  int64_t max_text_tokens = 0;             // number of positions
  int64_t padding_id = -1;                 // token whose embedding gets no gradient; -1: none
  float norm_eps = 1e-6f, init_std = 0.02f;
  float attention_dropout = 0;             // of attention probabilities: must be 0 unless dropout is off
  float branch_dropout = 0;                // of the outputs of attention and MLP
  bool tied = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool fused_qkv = false, fused_gate_up = false;  // the checkpoint has one matrix for q, k and v; one for gate and up
  GateActivation activation = GateActivation::silu;

  /// Names of a layer's norms: before attention and MLP, and after them, inside the branch. Empty: no such norm.
  struct NormNames {
    std::string before_attention = "input_layernorm", after_attention, before_mlp = "post_attention_layernorm", after_mlp;
  };
  NormNames norms;
  /// Norms of queries and keys: for each head separately, or over all heads of a row.
  enum class HeadNorms { none, each, together };
  HeadNorms head_norms = HeadNorms::none;
  RmsForm norm_form;                       // of all norms

  float score_scale = 0;                   // factor of attention scores; 0: 1 / sqrt(head_size)
  float score_cap = 0, logit_cap = 0;      // caps of attention scores and logits; 0: none
  float token_scale = 1;                   // factor of embedded tokens
  float branch_scale = 1;                  // factor of the outputs of attention and MLP
  float logit_scale = 1;

  RotaryPositions rotary;                  // bitwise equal to the values that transformers computes in f32
  RotaryPositions local_rotary;            // of layers with RopeKind::local
  bool rotary_neighbours = false;          // elements of a rotated pair are adjacent in files: RowOrder
  /// Properties that differ between layers.
  struct LayerKind {
    enum class RopeKind { none, global, local };
    int64_t window = 0;                    // number of keys that a query attends to, itself included; 0: all
    RopeKind turns = RopeKind::global;           // rotary positions: `rotary`, `local_rotary`, or none
    bool operator==(const LayerKind&) const = default;
  };
  std::vector<LayerKind> kinds;            // [layers]
};

/// The names and numbers of a decoder as a part of a model.
struct DecoderPlacement {
  std::string body = "model.", head = "lm_head";  ///< prefixes of its tensors' names ("language_model.model.")
  std::string units;                       ///< prefix of its units' names ("language.")
  uint32_t dropout_site = 0;               ///< number of its first dropout site; it has two per layer
};

/// Builds a decoder; `add_unit` adds its units to a model: embeddings, layers, head.
LanguageModel make_decoder_language(const DecoderConfig& config, const DecoderPlacement& placement,
                                    const ModelSettings& settings,
                                    const std::function<Unit&(const std::string& name)>& add_unit, LoraBuilder& lora);

/// `file`: the config.json of `config`, for messages. `in_files`: names in checkpoints, if they differ from `placement`.
std::unique_ptr<Model> make_decoder(DecoderConfig config, const std::string& file, const ModelSettings& settings,
                                    const DecoderPlacement& placement = {}, const DecoderPlacement* in_files = nullptr);

}  // namespace blipft
