// The unigram model; see tokenizer_unigram.h.
#include "text/tokenizer_unigram.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "blipft/error.h"
#include "text/unicode.h"

namespace blipft {
namespace {

constexpr double unknown_penalty = 10;

std::string decoded_base64(const std::string& text, const std::string& file) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    static constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const int value = digits.find(c) == std::string_view::npos ? -1 : static_cast<int>(digits.find(c));
    BLIPFT_USER_CHECK(value >= 0, file, ": normalizer.precompiled_charsmap is not base64; copy or download the file again");
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (++count % 4 != 1) bytes += static_cast<char>(bits >> (6 - 2 * ((count - 1) % 4)) & 255);
  }
  return bytes;
}

/// Returns the end of a cluster of characters: a base and its marks, or CR LF.
size_t cluster_end(std::string_view text, size_t begin) {
  size_t end = begin;
  const uint32_t first = unicode::next_code_point(text, end);
  if (first == '\r') return end < text.size() && text[end] == '\n' ? end + 1 : end;
  if (first < 0x20 || (first >= 0x7F && first < 0xA0)) return end;  // marks do not combine with these
  for (size_t next = end; next < text.size(); end = next) {
    const uint32_t follower = unicode::next_code_point(text, next);
    if (!unicode::is_mark(follower) && follower != 0x200C && follower != 0x200D) break;
  }
  return end;
}

}  // namespace

UnigramModel::UnigramModel(const UnigramSpec& spec) : unknown_id_(spec.unknown_id) {
  double minimum = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    const auto& [text, score] = spec.pieces[id];
    pieces_[text] = {static_cast<int32_t>(id), score};
    longest_ = std::max(longest_, text.size());
    minimum = std::min(minimum, score);
  }
  unknown_score_ = minimum - unknown_penalty;
}

void UnigramModel::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  struct Node {
    double score = 0;
    size_t begin = std::string::npos;       // begin of the piece that ends here
    int32_t id = -1;
  };
  std::vector<Node> best(word.size() + 1);
  const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
    Node& node = best[end];
    if (node.begin == std::string::npos || score > node.score) node = {score, begin, id};
  };
  for (size_t begin = 0; begin < word.size();) {
    size_t behind = begin;
    (void)unicode::next_code_point(word, behind);
    bool alone = false;
    for (size_t end = behind; end <= word.size() && end - begin <= longest_;) {
      if (const auto found = pieces_.find(word.substr(begin, end - begin)); found != pieces_.end()) {
        offer(begin, end, found->second.id, best[begin].score + found->second.score);
        alone |= end == behind;
      }
      if (end == word.size()) break;
      (void)unicode::next_code_point(word, end);
    }
    if (!alone) offer(begin, behind, unknown_id_, best[begin].score + unknown_score_);
    begin = behind;
  }
  std::vector<int32_t> backwards;
  for (size_t end = word.size(); end > 0; end = best[end].begin)
    if (best[end].id != unknown_id_ || backwards.empty() || backwards.back() != unknown_id_)
      backwards.push_back(best[end].id);
  ids.insert(ids.end(), backwards.rbegin(), backwards.rend());
}

PrecompiledCharacters::PrecompiledCharacters(const std::string& base64, const std::string& file) {
  const std::string bytes = decoded_base64(base64, file);
  uint32_t size = 0;
  const bool whole = bytes.size() >= sizeof size && (std::memcpy(&size, bytes.data(), sizeof size), size % 4 == 0) &&
                     size <= bytes.size() - sizeof size;
  BLIPFT_USER_CHECK(whole, file, ": normalizer.precompiled_charsmap has ", bytes.size(), " bytes, expected a table of ",
                    size, " and texts behind it; copy or download the file again");
  units_.resize(size / 4);
  if (size > 0) std::memcpy(units_.data(), bytes.data() + sizeof size, size);
  texts_ = bytes.substr(sizeof size + size);
  texts_ += '\0';
}

/// The common prefix search of Darts-clone, up to its first result.
const char* PrecompiledCharacters::rule(std::string_view text) const {
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  if (units_.empty()) return nullptr;
  size_t node = offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) return nullptr;
    node ^= byte;
    if (node >= units_.size() || (units_[node] & ((1u << 31) | 0xFF)) != byte) return nullptr;
    const bool ends = units_[node] >> 8 & 1;
    node ^= offset(units_[node]);
    if (!ends) continue;
    const size_t start = node < units_.size() ? units_[node] & ((1u << 31) - 1) : texts_.size();
    return start < texts_.size() ? texts_.c_str() + start : nullptr;
  }
  return nullptr;
}

std::string PrecompiledCharacters::normalized(std::string_view text) const {
  constexpr size_t short_cluster = 6;
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = cluster_end(text, begin);
    const char* const made = end - begin < short_cluster ? rule(text.substr(begin, end - begin)) : nullptr;
    if (made) {
      out += made;
    } else {
      for (size_t at = begin, next = begin; at < end; at = next) {
        (void)unicode::next_code_point(text, next);
        const char* const one = rule(text.substr(at, next - at));
        one ? out += one : out.append(text, at, next - at);
      }
    }
    begin = end;
  }
  return out;
}

}  // namespace blipft
