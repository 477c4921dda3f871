// InstructBLIP (Dai et al. 2023): BLIP-2 whose Q-Former reads the instruction, too, before a Vicuna (LLaMA) or T5.
#include "models/families/picture/instructblip.h"

#include "models/families/picture/instructblip_config.h"

namespace blipft {

std::unique_ptr<Model> make_instructblip(const std::string& config_file, const ModelSettings& settings) {
  return make_blip_model(read_instructblip(config_file), config_file, settings);
}

}  // namespace blipft
