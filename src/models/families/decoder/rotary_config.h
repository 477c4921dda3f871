// Reads the rotary positions that config.json describes.
#pragma once

#include <string>
#include <vector>

#include "io/json_fields.h"
#include "models/blocks/attention.h"

namespace blipft {

/// The input of read_rotary().
struct RotarySource {
  const JsonFields& fields;                // the whole file
  const JsonFields& rope;                  // the section with type and numbers; may be empty
  double base = 10000;                     // value if rope_theta is absent
  bool base_next_to = true;                 // `fields` may contain rope_theta
  int64_t head_size = 0;
  int64_t positions = 0;                   // max_position_embeddings
  int64_t original_positions = 0;          // positions before scaling, for longrope
  bool phi = false;                        // supports default and longrope; else default, linear and llama3
  bool mrope = false;                      // positions on several axes: type "mrope" is the default one
  double rotated_part = 0;                 // value of an absent partial_rotary_factor; 0: supports whole heads only
};

/// Returns rotary positions, bitwise equal to those that transformers computes in f32. Reduces `max_tokens` to the
/// longest text for which they are correct. Throws UserError with file, key, found value and supported values.
RotaryPositions read_rotary(const RotarySource& source, int64_t& max_tokens);

/// Returns the section with rotary positions of all layers. Throws UserError if layers have separate sections, which
/// `model_type` does not support.
JsonFields shared_rope(const JsonFields& fields, const std::string& model_type);

/// Returns the section's key: rope_parameters since transformers 5, which includes the base; rope_scaling before.
const char* rope_key(const JsonFields& fields);

}  // namespace blipft
