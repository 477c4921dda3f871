// Pictures anywhere in texts; see picture_reader.h.
#include "loading/picture_reader.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "blipft/error.h"
#include "blipft/loading.h"
#include "io/file.h"
#include "pictures/picture_patches.h"

namespace blipft {

DecodeSettings picture_decoding(const LoadingSettings& loading) {
  return {loading.data.exif_orientation, loading.data.transparency == Transparency::white};
}

EncodedPicture open_picture(const PictureFile& file) {
  const auto opened = std::make_shared<const io::FileDescriptor>(io::open_for_reading(file.file));
  const int64_t bytes = file.bytes < 0 ? io::file_size(*opened, file.file) : file.bytes;
  BLIPFT_USER_CHECK(bytes <= max_picture_bytes, file.name, ": found ", bytes, " bytes, expected a picture of at most ",
                    max_picture_bytes, ". Replace this picture or remove it from the data.");
  return {bytes, [opened, file](int64_t offset, void* out, int64_t count) {
            io::read_at(*opened, file.offset + offset, out, count, file.file);
          }};
}

void PictureReader::set_limits(const LoadingSettings& loading) {
  try {
    processor.patches = with_limits(processor.patches, loading.data.min_pixels, loading.data.max_pixels);
  } catch (const UserError& error) {
    const char* const key = loading.data.max_pixels > 0 ? "data.max_pixels" : "data.min_pixels";
    throw UserError(concat(location_of(loading, key), ": ", error.what()));
  }
}

PictureSegment PictureReader::cells_of(PictureSize size, const std::string& name) const {
  if (patches.picture_side > 0) return {0, patches.picture_side, patches.picture_side};
  const PictureSize fitted = fitted_size(size, processor.patches, name);
  const int64_t cell = patches.side * patches.merge;
  return {0, fitted.height / cell, fitted.width / cell};
}

PixelStatistics PictureReader::statistics() const {
  PixelStatistics statistics = processor.statistics;
  statistics.of_bytes = processor.resize.library == PixelLibrary::torchvision;
  return statistics;
}

int64_t PictureReader::max_cells() const {
  if (patches.picture_side > 0) return patches.picture_side * patches.picture_side;
  // Three bounds of fitted_size(): a picture that is scaled down, one that is scaled up and rounded up on both sides, and a
  // strip of one row of cells; the longer side is at most 200 times the shorter.
  const auto cell = static_cast<double>(patches.side * patches.merge);
  const auto minimum = static_cast<double>(processor.patches.min_pixels), maximum = static_cast<double>(processor.patches.max_pixels);
  const double up = std::sqrt(minimum) / cell;
  return static_cast<int64_t>(std::max({maximum / (cell * cell), up * up + (std::sqrt(200) + 1) * up + 1, std::sqrt(200 * maximum) / cell, 1.0}));
}

std::vector<PictureSegment> PictureReader::sizes(const std::vector<PictureFile>& files, const std::string& name) const {
  const auto count = static_cast<int64_t>(files.size());
  BLIPFT_USER_CHECK(max_pictures == 0 || count <= max_pictures, name, ": found ", count, " pictures, expected at most ",
                    max_pictures, " (data.max_pictures). Raise data.max_pictures or remove the sample.");
  std::vector<PictureSegment> all;
  for (const PictureFile& file : files)
    all.push_back(cells_of(picture_size(open_picture(file), file.name, decode), file.name));
  return all;
}

void PictureReader::expand(std::vector<TextSegment>& segments, const std::vector<PictureSegment>& pictures,
                           const std::string& name) const {
  size_t found = 0;
  for (TextSegment& segment : segments) {
    std::string text;
    size_t done = 0;
    for (size_t at; (at = segment.text.find(tokens.placeholder, done)) != std::string::npos; ++found) {
      text.append(segment.text, done, at - done).append(tokens.before);
      if (found < pictures.size())
        for (int64_t cell = 0; cell < pictures[found].cells(); ++cell) text += tokens.cell;
      text += tokens.after;
      done = at + tokens.placeholder.size();
    }
    segment.text = text.append(segment.text, done);
  }
  BLIPFT_USER_CHECK(found == pictures.size(), name, ": found ", counted(static_cast<int64_t>(pictures.size()), "picture"), " and ",
                    counted(static_cast<int64_t>(found), "placeholder"), " ", tokens.placeholder,
                    " in the text, expected as many of both. Check the chat template (data.chat_template), and remove ",
                    tokens.placeholder, " from the record's texts.");
}

void PictureReader::locate(TokenizedText& text, std::vector<PictureSegment> pictures, const std::string& name) const {
  auto next = text.ids.begin();
  for (PictureSegment& picture : pictures) {
    next = std::find(next, text.ids.end(), id);
    picture.first = next - text.ids.begin();
    const auto end = std::find_if(next, text.ids.end(), [this](int32_t other) { return other != id; });
    BLIPFT_USER_CHECK(end - next >= picture.cells(), name, ": found ", end - next, " tokens with id ", id, " for a picture of ",
                      picture.cells(), " rows, expected one for each row: the tokenizer does not read ", tokens.cell,
                      " as one token. Use the tokenizer that belongs to the model.");
    next += picture.cells();
    std::fill_n(text.is_label.begin() + picture.first, picture.cells(), uint8_t{0});
  }
  BLIPFT_USER_CHECK(std::find(next, text.ids.end(), id) == text.ids.end(), name, ": found ", tokens.cell,
                    " without a picture in the text. Remove it from the record.");
  text.pictures = std::move(pictures);
}

void PictureReader::check_rows(const TokenizedText& text, const std::string& name) const {
  BLIPFT_USER_CHECK(text.size() <= max_rows, name, ": found ", text.size(), " tokens and rows of pictures, expected at most ",
                    max_rows, ", the positions of the model. Lower data.max_pixels or data.max_text_tokens, or remove the sample.");
}

std::vector<uint8_t> PictureReader::read(const std::vector<PictureFile>& files, const std::vector<PictureSegment>& pictures) const {
  int64_t sum = 0;
  for (const PictureSegment& picture : pictures) sum += bytes(picture);
  std::vector<uint8_t> all(static_cast<size_t>(sum));
  uint8_t* out = all.data();
  for (size_t i = 0; i < pictures.size(); out += bytes(pictures[i++])) read_one(files.at(i), pictures[i], out);
  return all;
}

void PictureReader::set_patches(std::vector<PictureSegment>& pictures, const uint8_t* all) const {
  for (PictureSegment& picture : pictures) picture.patches = std::exchange(all, all + bytes(picture));
}

Image PictureReader::decoded(const PictureFile& file) const {
  const EncodedPicture encoded = open_picture(file);
  std::vector<uint8_t> content(static_cast<size_t>(encoded.size));
  encoded.read(0, content.data(), encoded.size);
  return decode_image(content.data(), content.size(), file.name, decode);
}

void PictureReader::read_one(const PictureFile& file, const PictureSegment& picture, uint8_t* out) const {
  const Image image = decoded(file);
  const PictureSegment cells = cells_of({image.height, image.width}, file.name);
  BLIPFT_USER_CHECK(cells.height == picture.height && cells.width == picture.width, file.name, ": found ", image.width, " x ",
                    image.height, " pixels, and the file had another size before. Keep the data unchanged while a run reads it.");
  const int64_t cell = patches.side * patches.merge;
  cut_patches(resize_picture(image, cells.width * cell, cells.height * cell, processor.resize),
              {.patch = patches.side, .merge = patches.merge}, out);
}

}  // namespace blipft
