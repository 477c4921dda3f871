// What config.json says of a BLIP-2 model with an OPT or a T5 language model.
#pragma once

#include <optional>
#include <string>

#include "models/families/opt.h"
#include "models/families/qformer.h"
#include "models/families/t5_config.h"
#include "models/families/vit.h"

namespace blipft {

class JsonFields;

struct Blip2Config {
  VitShape vision;
  QFormerShape qformer;
  OptShape text;
  std::optional<T5Config> t5;              // in place of `text`
  int64_t text_hidden() const { return t5 ? t5->hidden : text.hidden; }

  /// Reads and checks `file`; absent keys have transformers' defaults. Throws UserError naming file, key, found value
  /// and what is supported.
  static Blip2Config read(const std::string& file);
};

// What the reading of BLIP-2's relatives shares.

VitShape read_vision(const JsonFields& fields);
/// `picture_hidden`: the vision tower's; without the sizes of instructions.
QFormerShape read_qformer(const JsonFields& fields, int64_t picture_hidden, int64_t queries);

}  // namespace blipft
