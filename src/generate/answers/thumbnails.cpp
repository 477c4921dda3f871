// Thumbnails of a page; see thumbnails.h.
#include "generate/answers/thumbnails.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/base64.h"
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
    : prompts_(prompts), max_side_(side_of(count_pictures(prompts))), max_on_page_(kMaxBytes / ranks) {}

void Thumbnails::add(int64_t prompt, const Image& image) {
  const std::string& name = prompts_[static_cast<size_t>(prompt)].name;
  {
    const std::lock_guard lock(mutex_);
    if (on_page_ >= max_on_page_ || !names_.insert(name).second) return;
  }
  const std::vector<uint8_t> jpeg = thumbnail_jpeg(image, max_side_);
  const int64_t head[] = {prompt, static_cast<int64_t>(jpeg.size())}, on_page = (head[1] + 2) / 3 * 4;
  const std::lock_guard lock(mutex_);
  if (on_page_ + on_page > max_on_page_) return;
  on_page_ += on_page;
  bytes_.append(reinterpret_cast<const char*>(head), sizeof head).append(jpeg.begin(), jpeg.end());
}

std::map<std::string, std::string> Thumbnails::of_ranks(const std::vector<PromptedSample>& prompts,
                                                        const std::vector<std::string>& ranks) {
  std::map<std::string, std::string> thumbnails;
  for (const std::string& bytes : ranks) {
    const auto* at = reinterpret_cast<const uint8_t*>(bytes.data()), *const end = at + bytes.size();
    while (at < end) {
      int64_t head[2];
      std::memcpy(head, at, sizeof head);
      at += sizeof head;
      thumbnails.emplace(prompts[static_cast<size_t>(head[0])].name, base64_of({at, static_cast<size_t>(head[1])}));
      at += head[1];
    }
  }
  return thumbnails;
}

}  // namespace blipft
