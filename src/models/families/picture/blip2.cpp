// BLIP-2 (Li et al. 2023): a Q-Former's queries that read the picture alone, before OPT or T5.
#include "models/families/picture/blip2.h"

#include "models/families/picture/blip2_config.h"

namespace blipft {

std::unique_ptr<Model> make_blip2(const std::string& config_file, const ModelSettings& settings) {
  return make_blip_model(read_blip2(config_file), config_file, settings);
}

}  // namespace blipft
