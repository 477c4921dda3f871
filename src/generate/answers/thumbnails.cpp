// Thumbnails of a page; see thumbnails.h.
#include "generate/answers/thumbnails.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/base64.h"
#include "blipft/error.h"
#include "pictures/thumbnail.h"

namespace blipft {

namespace {

// The limit of all thumbnails of a page, because mail accepts files of about 18 MB.
constexpr int64_t kMaxBytes = int64_t{12} << 20;
// kSide is the size on the page. A photo of this size takes about 14 KB in base64, so that kPictures of them fill
// kMaxBytes.
constexpr int64_t kSide = 240, kMinSide = 64, kPictures = 800;

int64_t side_of(int64_t pictures) {
  const double fewer = std::sqrt(static_cast<double>(kPictures) / static_cast<double>(std::max(kPictures, pictures)));
  return std::max(kMinSide, static_cast<int64_t>(kSide * fewer));
}

int64_t count_pictures(const std::vector<PromptedSample>& prompts) {
  std::set<std::string_view> names;
  for (const PromptedSample& prompt : prompts) names.insert(prompt.name);
  return static_cast<int64_t>(names.size());
}

}  // namespace

Thumbnails::Thumbnails(const std::vector<PromptedSample>& prompts, int64_t ranks)
    : prompts_(prompts), max_side_(side_of(count_pictures(prompts))), max_bytes_(kMaxBytes / ranks) {}

void Thumbnails::add(int64_t prompt, const Image& image) {
  const std::string& name = prompts_[static_cast<size_t>(prompt)].name;
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int64_t>(lines_.size()) >= max_bytes_ || !names_.insert(name).second) return;
  }
  const std::string line = concat(prompt, " ", base64_of(thumbnail_jpeg(image, max_side_)), "\n");
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(lines_.size() + line.size()) <= max_bytes_) lines_ += line;
}

std::map<std::string, std::string> Thumbnails::of_lines(const std::vector<PromptedSample>& prompts,
                                                        const std::vector<std::string>& ranks) {
  std::map<std::string, std::string> thumbnails;
  for (const std::string& text : ranks) {
    std::istringstream lines(text);
    int64_t prompt = 0;
    for (std::string picture; lines >> prompt >> picture;)
      thumbnails.emplace(prompts[static_cast<size_t>(prompt)].name, std::move(picture));
  }
  return thumbnails;
}

}  // namespace blipft
