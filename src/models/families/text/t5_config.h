// What config.json says of a T5: the original one, T5 v1.1 and flan-T5, and the language model of a BLIP-2.
//
// Two things of the file have changed their meaning in transformers 5, which writes tie_word_embeddings: true always: the
// output is scaled where scale_decoder_outputs says so, else where tie_word_embeddings is not false; and the head has a
// weight of its own where the checkpoint has one.
#pragma once

#include <string>

#include "io/json_fields.h"
#include "models/blocks/stack.h"

namespace blipft {

struct T5Config {
  int64_t vocabulary = 32128, hidden = 512, inner = 2048, heads = 8, head_size = 64;
  int64_t layers = 6, decoder_layers = 6;
  int64_t buckets = 32, most_distance = 128;  // of relative positions
  int32_t decoder_start = 0;
  float norm_eps = 1e-6f, dropout = 0.1f, init_factor = 1;
  bool gated = false;
  Activation activation = Activation::relu;            // of a plain MLP
  GateActivation gate = GateActivation::gelu_tanh;     // of a gated one
  bool scaled = true;                      // what the head reads, by 1 / sqrt(hidden)
  bool tied = true;                        // unless the checkpoint has a head of its own

  /// Reads and checks config.json, or a part of it; absent keys have transformers' defaults. Throws UserError naming file,
  /// key, found value and what is supported.
  static T5Config read(const JsonFields& fields);
};

/// The buckets of an encoder, for keys before and after the query, or of a decoder; see RelativeBias. Those of
/// T5Attention._relative_position_bucket.
RelativeBias relative_rule(const T5Config& config, bool both_ways);

}  // namespace blipft
