// What BLIP-2 and its relatives share: a vision tower, a Q-Former that reads it, and a language model that continues from what
// the Q-Former read: a decoder, or an encoder and a decoder, whose encoder reads it before the prompt.
//
// Parameter groups: vision, qformer, language_projection, language.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "models/families/decoder/decoder.h"
#include "models/families/picture/qformer.h"
#include "models/families/picture/vit.h"
#include "models/families/text/opt.h"
#include "models/families/text/t5_config.h"

namespace blipft {

/// What config.json says of one.
struct BlipConfig {
  std::string family;                      ///< for people
  VitShape vision;
  QFormerShape qformer;                    ///< where it reads instructions, so do they
  std::variant<OptShape, DecoderConfig, T5Config> language;
};

/// `config_file`: where it was read, for messages.
std::unique_ptr<Model> make_blip_model(BlipConfig config, const std::string& config_file, const ModelSettings& settings);

}  // namespace blipft
