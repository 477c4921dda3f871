// The fuzz targets without a fuzzer: each with its corpus, and with mutations of it that are the same in every run.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz/targets.h"

using namespace blipft::testing;

namespace {

constexpr int mutations = 3000;              // of each target,
constexpr double max_seconds = 1;           // as far as they come in this time

std::vector<std::string> corpus_of(const std::string& target) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator("test/fuzz/corpus/" + target)) files.push_back(entry);
  std::sort(files.begin(), files.end());
  std::vector<std::string> contents;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    contents.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return contents;
}

/// A few changes of bytes, cuts, repetitions, and pieces of another input.
std::string mutated(std::string text, const std::vector<std::string>& corpus, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  static const std::string odd[] = {"[[[[[[[[", "{\"", "null", "-1", "1e999", "18446744073709551616", "\\ud800",
                                    "\xff\xff",
                                    std::string(4, '\0'), "\n", "..", "\""};
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(text.size() + 1), length = below(std::min<size_t>(text.size() - at, 64) + 1);
    switch (random() % 6) {
      case 0: if (at < text.size()) text[at] = static_cast<char>(random()); break;
      case 1: if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random() % 8)); break;
      case 2: text.erase(at, length); break;
      case 3: text.insert(at, std::string(text, at, length)); break;
      case 4: text.insert(at, odd[below(std::size(odd))]); break;
      default: {
        const std::string& other = corpus[below(corpus.size())];
        const size_t from = below(other.size() + 1);
        text.replace(at, length, other, from, below(64));
      }
    }
  }
  return text;
}

}  // namespace

TEST_SUITE("fuzz") {
  TEST_CASE("each target takes or refuses its corpus and mutations of it [slow]") {
    for (const FuzzTarget& target : fuzz_targets) {
      CAPTURE(target.name);
      const std::vector<std::string> corpus = corpus_of(target.name);
      REQUIRE(!corpus.empty());
      for (const std::string& input : corpus) CHECK_NOTHROW(target.run(input));
      std::mt19937 random(1);
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < mutations; ++i) {
        const std::string input = mutated(corpus[random() % corpus.size()], corpus, random);
        CAPTURE(i);
        CHECK_NOTHROW(target.run(input));
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > max_seconds) break;
      }
    }
  }
}
