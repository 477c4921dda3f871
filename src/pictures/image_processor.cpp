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
                         ". This program prepares pictures in no other way; use the processor file that the model was "
                         "published with."));
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
  constexpr double minimum = 1e-4, maximum = 1e4;
  if (!object.contains(key)) return;
  const json& values = object[key];
  bool good = values.is_array() && values.size() == 3;
  for (size_t i = 0; good && i < 3; ++i) {
    good = values[i].is_number() && std::abs(values[i].get<double>()) <= maximum &&
           (!positive || values[i].get<double>() >= minimum);
    if (good) out[i] = values[i].get<float>();
  }
  if (!good) unexpected(file, key, values, concat("three numbers from ", positive ? minimum : -maximum, " to ", maximum));
}

void check_flag(const std::string& file, const json& object, const std::string& key, bool expected) {
  if (object.contains(key) && !object[key].is_null() && object[key] != json(expected))
    unexpected(file, key, object[key], expected ? "true" : "false");
}

/// Reads a positive number up to `maximum`; an absent key or null keeps the value of `out`.
void read_number(const std::string& file, const json& object, const std::string& key, int64_t maximum, int64_t& out) {
  if (!object.contains(key) || object[key].is_null()) return;
  const json& value = object[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 || value.get<uint64_t>() > static_cast<uint64_t>(maximum))
    unexpected(file, key, value, concat("a whole number from 1 to ", maximum));
  out = value.get<int64_t>();
}

/// Reads the sizes of patches and the limits of areas. min_pixels and max_pixels are the older names of the areas in
/// "size" and take precedence; older files have other keys in "size" beside them.
void read_patches(const std::string& file, const json& object, PatchSettings& patches) {
  const json size = object.value("size", json());
  if (!size.is_null() && !(object.contains("min_pixels") && object.contains("max_pixels"))) {
    if (!size.is_object() || size.size() != 2 || !size.contains("shortest_edge") || !size.contains("longest_edge"))
      unexpected(file, "size", size, "{\"shortest_edge\": minimum area, \"longest_edge\": maximum area}");
    read_number(file, size, "shortest_edge", max_picture_pixels, patches.min_pixels);
    read_number(file, size, "longest_edge", max_picture_pixels, patches.max_pixels);
  }
  read_number(file, object, "min_pixels", max_picture_pixels, patches.min_pixels);
  read_number(file, object, "max_pixels", max_picture_pixels, patches.max_pixels);
  read_number(file, object, "patch_size", 1024, patches.patch);
  read_number(file, object, "merge_size", 16, patches.merge);
  read_number(file, object, "temporal_patch_size", 16, patches.time);
  const int64_t block = patches.patch * patches.merge;
  BLIPFT_USER_CHECK(patches.min_pixels <= patches.max_pixels && block * block <= patches.max_pixels, file,
                    ": found pictures of ", patches.min_pixels, " to ", patches.max_pixels, " pixels, expected a ",
                    "maximum of at least the minimum and of at least one block of ", block, " x ", block,
                    " pixels. Correct size, min_pixels or max_pixels.");
}

ImageProcessor from_object(const std::string& file, const json& object, const ImageProcessor& defaults) {
  ImageProcessor processor = defaults;
  if (processor.patches.patch > 0) read_patches(file, object, processor.patches);
  else if (object.contains("size")) processor.image_size = read_size(file, object["size"]);
  read_three(file, object, "image_mean", false, processor.statistics.mean);
  read_three(file, object, "image_std", true, processor.statistics.std);
  const bool bicubic = processor.resize.filter == ResizeFilter::bicubic;
  if (object.contains("resample") && object["resample"] != json(bicubic ? 3 : 2))
    unexpected(file, "resample", object["resample"], bicubic ? "3 (bicubic)" : "2 (bilinear)");
  if (object.contains("rescale_factor")) {
    const json& factor = object["rescale_factor"];
    if (!factor.is_number() || std::abs(factor.get<double>() - 1.0 / 255) > 1e-8)
      unexpected(file, "rescale_factor", factor, "1/255");
  }
  for (const char* key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"})
    check_flag(file, object, key, true);
  for (const char* key : {"do_center_crop", "do_pad", "do_pan_and_scan"}) check_flag(file, object, key, false);
  return processor;
}

}  // namespace

ImageProcessor ImageProcessor::from_directory(const std::string& model_directory, const ImageProcessor& defaults) {
  const std::filesystem::path directory = model_directory;
  std::error_code ignored;
  // Newer transformers versions write the settings of all processors into one file, which takes precedence.
  const std::string combined = (directory / "processor_config.json").string();
  if (std::filesystem::exists(combined, ignored)) {
    const json object = read_object(combined);
    if (object.contains("image_processor") && object["image_processor"].is_object())
      return from_object(combined, object["image_processor"], defaults);
  }
  const std::string file = (directory / "preprocessor_config.json").string();
  return std::filesystem::exists(file, ignored) ? from_object(file, read_object(file), defaults) : defaults;
}

ImageProcessor ImageProcessor::from_directory(const std::string& model_directory) {
  return from_directory(model_directory, {});
}

}  // namespace blipft
