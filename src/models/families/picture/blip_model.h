// The common part of BLIP-2 and related models: a vision tower, a Q-Former that reads its output, and a language model
// that reads the Q-Former's output before the text (a decoder) or before the prompt (an encoder-decoder, in its
// encoder).
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

/// The configuration of such a model in config.json.
struct BlipConfig {
  std::string family;                      ///< name in descriptions
  VitShape vision;
  QFormerShape qformer;                    ///< its `instruction` is set if the family reads instructions
  std::variant<OptShape, DecoderConfig, T5Config> language;
};

/// `config_file`: the file of `config`, for messages.
std::unique_ptr<Model> make_blip_model(BlipConfig config, const std::string& config_file, const ModelSettings& settings);

}  // namespace blipft
