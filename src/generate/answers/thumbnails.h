// Thumbnails of the samples that a rank answers, for the page: made when the pictures are read, and together small
// enough for mail.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "blipft/pictures.h"
#include "blipft/prompts.h"

namespace blipft {

class Thumbnails {
 public:
  /// Prepares the thumbnails of the pictures that one of `ranks` ranks reads. `prompts` must outlive this object.
  Thumbnails(const std::vector<PromptedSample>& prompts, int64_t ranks);
  /// Adds the thumbnail of a prompt's picture unless it exists or exceeds this rank's size limit. Thread-safe.
  void add(int64_t prompt, const Image& image);
  /// Returns the thumbnails for the rank that writes the page: of each the number of its prompt and its bytes as two int64,
  /// then a JPEG.
  const std::string& bytes() const { return bytes_; }
  /// Returns {a prompt's name: its thumbnail in base64} from the bytes of all ranks.
  static std::map<std::string, std::string> of_ranks(const std::vector<PromptedSample>& prompts,
                                                     const std::vector<std::string>& ranks);

 private:
  const std::vector<PromptedSample>& prompts_;
  int64_t max_side_, max_on_page_;         // pixels; bytes of base64
  std::mutex mutex_;
  std::set<std::string> names_;
  std::string bytes_;
  int64_t on_page_ = 0;
};

}  // namespace blipft
