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
  /// Returns a line "NUMBER BASE64" for each thumbnail, for the rank that writes the page.
  const std::string& lines() const { return lines_; }
  /// Returns {a prompt's name: its picture as a JPEG in base64} from the lines of all ranks.
  static std::map<std::string, std::string> of_lines(const std::vector<PromptedSample>& prompts,
                                                     const std::vector<std::string>& ranks);

 private:
  const std::vector<PromptedSample>& prompts_;
  int64_t max_side_, max_bytes_;
  std::mutex mutex_;
  std::set<std::string> names_;
  std::string lines_;
};

}  // namespace blipft
