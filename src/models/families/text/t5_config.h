// Reads config.json of a T5: the original T5, T5 v1.1 and flan-T5, and the language model of a BLIP-2.
//
// transformers 5 always writes tie_word_embeddings: true, and reads two things differently. It scales the output
// according to scale_decoder_outputs, or, if that key is absent, unless tie_word_embeddings is false. And the head is
// untied if the checkpoint contains a weight of the head.
#pragma once

#include <string>

#include "io/json_fields.h"
#include "models/blocks/stack.h"

namespace blipft {

struct T5Config {
  int64_t vocabulary = 32128, hidden = 512, inner = 2048, heads = 8, head_size = 64;
  int64_t layers = 6, decoder_layers = 6;
  int64_t buckets = 32, max_distance = 128;  // of relative positions
  int32_t decoder_start = 0;
  float norm_eps = 1e-6f, dropout = 0.1f, init_factor = 1;
  bool gated = false;
  Activation activation = Activation::relu;            // of a plain MLP
  GateActivation gate = GateActivation::gelu_tanh;     // of a gated one
  bool scaled = true;                      // scale the head's input by 1 / sqrt(hidden)
  bool tied = true;                        // ignored if the checkpoint contains a weight of the head

  /// Reads and checks config.json, or a section of it; absent keys have transformers' defaults. Throws UserError with
  /// file, key, found value and supported values.
  static T5Config read(const JsonFields& fields);
};

/// Returns the buckets of an encoder (`both_ways`: keys before and after the query) or of a decoder; see RelativeBias.
/// Equal to those of T5Attention._relative_position_bucket.
RelativeBias relative_rule(const T5Config& config, bool both_ways);

}  // namespace blipft
