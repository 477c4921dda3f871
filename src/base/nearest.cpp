// Nearest: edit distance between names, and the nearest of a list.
#include "base/nearest.h"

#include <algorithm>
#include <cctype>

namespace blipft {

namespace {

/// Lower case, without the separators that people leave out or mix up.
std::string plain_name(const std::string& name) {
  std::string plain;
  for (unsigned char c : name)
    if (c != '_' && c != '-') plain += static_cast<char>(std::tolower(c));
  return plain;
}

}  // namespace

int64_t name_distance(const std::string& a_name, const std::string& b_name) {
  const std::string a = plain_name(a_name), b = plain_name(b_name);
  const size_t rows = a.size() + 1, columns = b.size() + 1;
  std::vector<std::vector<int64_t>> d(rows, std::vector<int64_t>(columns));
  for (size_t i = 0; i < rows; ++i) d[i][0] = static_cast<int64_t>(i);
  for (size_t j = 0; j < columns; ++j) d[0][j] = static_cast<int64_t>(j);
  for (size_t i = 1; i < rows; ++i)
    for (size_t j = 1; j < columns; ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > 200) return "";  // no name of ours is near to that, and the table would be large
  std::string best;
  int64_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const int64_t distance = name_distance(name, candidate);
    const int64_t length = static_cast<int64_t>(std::max(name.size(), candidate.size()));
    // One change in a short name and a third of a long one: more is another word.
    if (distance > std::max<int64_t>(1, length / 3)) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string join_names(const std::vector<std::string>& names, const std::string& last) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? last : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace blipft
