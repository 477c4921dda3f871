// The JSON files of a model that say sizes: config.json of each family, preprocessor_config.json.
#include "blipft/pictures.h"
#include "fuzz/fuzz_target.h"
#include "io/json_fields.h"
#include "models/families/families.h"
#include "models/families/picture/blip2_config.h"
#include "models/families/picture/instructblip_config.h"

BLIPFT_FUZZ_TARGET(model_config) {
  using namespace blipft;
  static const testing::FuzzFolder folder;
  const std::string file = folder.write("preprocessor_config.json", input);
  testing::refuses_or_takes([&] { (void)read_decoder_config(JsonFields(io::read_json_file(file), file)); });
  testing::refuses_or_takes([&] { (void)read_blip2(JsonFields(io::read_json_file(file), file)); });
  testing::refuses_or_takes([&] { (void)read_instructblip(JsonFields(io::read_json_file(file), file)); });
  testing::refuses_or_takes([&] { (void)ImageProcessor::from_directory(folder.path()); });
}
