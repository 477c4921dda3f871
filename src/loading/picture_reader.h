// Pictures that stand anywhere in texts: their sizes, their text, and their patches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/batch.h"
#include "blipft/datasets.h"
#include "blipft/pictures.h"
#include "blipft/tokenizer_rules.h"

namespace blipft {

struct LoadingSettings;

struct PictureReader {
  PictureTokens tokens;
  int32_t id = -1;                         ///< StreamInputs::picture_id
  int64_t max_rows = 0;                    ///< StreamInputs::max_tokens
  PatchInputs patches;
  ImageProcessor processor;                ///< with the limits of the run
  DecodeSettings decode;
  int64_t max_pictures = 0;                ///< data.max_pictures; 0: any number

  /// Applies data.min_pixels and data.max_pixels. Throws UserError naming the key if they do not suit each other.
  void set_limits(const LoadingSettings& loading);

  /// Returns the cells of each picture, from its header alone. Throws UserError naming the sample, `name`, if there are more
  /// than max_pictures, or naming a picture that cannot be used.
  std::vector<PictureSegment> sizes(const std::vector<PictureFile>& files, const std::string& name) const;
  /// Replaces each placeholder in `segments` by the text of its picture. Throws UserError naming the sample if there are
  /// more or fewer placeholders than pictures.
  void expand(std::vector<TextSegment>& segments, const std::vector<PictureSegment>& pictures, const std::string& name) const;
  /// Sets text.pictures: `pictures` at the tokens that stand for them, which are no labels.
  void locate(TokenizedText& text, std::vector<PictureSegment> pictures, const std::string& name) const;
  /// Throws UserError naming the sample if the model has fewer positions than the text has rows.
  void check_rows(const TokenizedText& text, const std::string& name) const;

  Image decoded(const PictureFile& file) const;
  /// Decodes the first of these files into `pictures`. Returns the patches of all, u8 [patches, 3 * side^2], cell by cell.
  std::vector<uint8_t> read(const std::vector<PictureFile>& files, const std::vector<PictureSegment>& pictures) const;
  /// Sets the patches of pictures to those that read() returned.
  void set_patches(std::vector<PictureSegment>& pictures, const uint8_t* all) const;
  /// Returns the cells of a picture of this size.
  PictureSegment cells_of(PictureSize size, const std::string& name) const;
  /// Returns how the device normalizes pixels.
  PixelStatistics statistics() const;
  /// Returns the most cells that a picture can have.
  int64_t max_cells() const;

 private:
  int64_t bytes(const PictureSegment& picture) const {
    return picture.cells() * patches.of_cell() * 3 * patches.side * patches.side;
  }
  void read_one(const PictureFile& file, const PictureSegment& picture, uint8_t* out) const;
};

/// Returns the part of a file that holds a picture. Throws UserError naming the picture.
EncodedPicture open_picture(const PictureFile& file);

}  // namespace blipft
