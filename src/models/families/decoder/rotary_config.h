// Rotary positions as config.json describes them.
#pragma once

#include <string>
#include <vector>

#include "io/json_fields.h"
#include "models/blocks/attention.h"

namespace blipft {

/// What rotary positions are read from.
struct RotarySource {
  const JsonFields& fields;                // the file
  const JsonFields& rope;                  // the section with their type and numbers; may be empty
  double base = 10000;                     // where neither says it
  bool base_beside = true;                 // `fields` may have rope_theta
  int64_t head_size = 0;
  int64_t positions = 0;                   // max_position_embeddings
  int64_t original_positions = 0;          // those before the scaling; 0: as llama3 scaling reads it
  bool phi = false;                        // types default and longrope; else default, linear and llama3
  double rotated_part = 0;                 // the value of an absent partial_rotary_factor; 0: whole heads alone are supported
};

/// The bits that transformers computes in f32. `max_tokens` becomes the longest text for which they are right.
/// Throws UserError naming file, key, found value and what is supported.
RotaryPositions read_rotary(const RotarySource& source, int64_t& max_tokens);

/// The section of all layers' rotary positions. Throws UserError where layers have sections of their own, which a
/// `model_type` does not support.
JsonFields shared_rope(const JsonFields& fields, const std::string& model_type);

/// transformers 5 writes rope_parameters, with the base in it; before it, rope_scaling stood beside rope_theta.
const char* rope_key(const JsonFields& fields);

}  // namespace blipft
