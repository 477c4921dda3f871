// ImageProcessor: reads preprocessor_config.json and refuses operations that this program does not implement.
#include <cmath>
#include <filesystem>

#include "blipft/error.h"
#include "blipft/pictures.h"
#include "io/json.h"

namespace blipft {
namespace {

using nlohmann::json;

[[noreturn]] void unexpected(const std::string& file, const std::string& key, const json& found,
                             const std::string& expected) {
  throw UserError(concat(file, ": key \"", key, "\" is ", io::brief(found), ", expected ", expected,
                         "; this program prepares pictures as BlipImageProcessor does"));
}

json read_object(const std::string& file) {
  json object = io::read_json_file(file);
  BLIPFT_USER_CHECK(object.is_object(), file, ": found a JSON ", object.type_name(), ", expected an object");
  return object;
}

int64_t read_size(const std::string& file, const json& size) {
  static const char* const expected = "a positive number or {\"height\": n, \"width\": n} with equal sides";
  json side = size;
  if (size.is_object()) {
    if (size.size() != 2 || !size.contains("height") || !size.contains("width") || size["height"] != size["width"])
      unexpected(file, "size", size, expected);
    side = size["height"];
  }
  if (!side.is_number_unsigned() || side.get<uint64_t>() == 0 || side.get<uint64_t>() > 16384)
    unexpected(file, "size", size, expected);
  return side.get<int64_t>();
}

/// Reads three numbers. Pixel values lie between 0 and 1: statistics of another magnitude are a mistake, and would make
/// normalized pixels infinite in f32.
void read_three(const std::string& file, const json& object, const std::string& key, bool positive, float (&out)[3]) {
  constexpr double least = 1e-4, most = 1e4;
  if (!object.contains(key)) return;
  const json& values = object[key];
  bool good = values.is_array() && values.size() == 3;
  for (size_t i = 0; good && i < 3; ++i) {
    good = values[i].is_number() && std::abs(values[i].get<double>()) <= most &&
           (!positive || values[i].get<double>() >= least);
    if (good) out[i] = values[i].get<float>();
  }
  if (!good) unexpected(file, key, values, concat("three numbers from ", positive ? least : -most, " to ", most));
}

void check_flag(const std::string& file, const json& object, const std::string& key, bool expected) {
  if (object.contains(key) && !object[key].is_null() && object[key] != json(expected))
    unexpected(file, key, object[key], expected ? "true" : "false");
}

ImageProcessor from_object(const std::string& file, const json& object) {
  ImageProcessor processor;
  if (object.contains("size")) processor.image_size = read_size(file, object["size"]);
  read_three(file, object, "image_mean", false, processor.statistics.mean);
  read_three(file, object, "image_std", true, processor.statistics.std);
  if (object.contains("resample") && object["resample"] != json(3))
    unexpected(file, "resample", object["resample"], "3 (bicubic)");
  if (object.contains("rescale_factor")) {
    const json& factor = object["rescale_factor"];
    if (!factor.is_number() || std::abs(factor.get<double>() - 1.0 / 255) > 1e-8)
      unexpected(file, "rescale_factor", factor, "1/255");
  }
  for (const char* key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"})
    check_flag(file, object, key, true);
  for (const char* key : {"do_center_crop", "do_pad"}) check_flag(file, object, key, false);
  return processor;
}

}  // namespace

ImageProcessor ImageProcessor::from_directory(const std::string& model_directory) {
  const std::filesystem::path directory = model_directory;
  std::error_code ignored;
  const std::string file = (directory / "preprocessor_config.json").string();
  if (std::filesystem::exists(file, ignored)) return from_object(file, read_object(file));
  // Newer transformers versions write the settings of all processors into one file.
  const std::string combined = (directory / "processor_config.json").string();
  if (std::filesystem::exists(combined, ignored)) {
    const json object = read_object(combined);
    if (object.contains("image_processor") && object["image_processor"].is_object())
      return from_object(combined, object["image_processor"]);
  }
  return {};
}

}  // namespace blipft
