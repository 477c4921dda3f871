// A model of texts with pictures anywhere: a tower computes rows of the pictures (picture_tower.h), which replace tokens
// of a decoder.
//
// Parameter groups: vision, merger, language.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/families/decoder/decoder.h"
#include "models/towers/picture_tower.h"

namespace blipft {

struct TowerModelConfig {
  DecoderConfig language;
  int64_t position_axes = 1;               // 3: M-RoPE
  int32_t picture_id = -1;                 // id of the tokens in whose place rows of pictures stand
  bool last_keys = false;                  // rows of a picture see each other in both directions
  std::vector<NamePrefix> names_in_files = {};  // where checkpoints differ from the module tree of transformers
};
using MakeTower = std::function<std::unique_ptr<PictureTower>(const TowerBuilding&)>;

/// Modules are named as in transformers' tree: "model.language_model." and "lm_head". `file`: the config.json, for messages.
std::unique_ptr<Model> make_tower_model(TowerModelConfig config, const std::string& file, const ModelSettings& settings,
                                        const MakeTower& make_tower);

}  // namespace blipft
