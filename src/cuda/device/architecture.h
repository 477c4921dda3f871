// Selection of the compiled code that a GPU runs. A program contains code for the architectures that it was built for
// (make CUDA_ARCH="80 90a"). This header neither queries a GPU nor needs CUDA.
#pragma once

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "blipft/error.h"

namespace blipft {

/// A compilation target in nvcc's notation: "80", "90a".
struct Architecture {
  int number = 0;   ///< 10 * major + minor of a compute capability
  char suffix = 0;  ///< 'a': only this capability; 'f': its family; 0: this and all later ones (through PTX)

  bool operator==(const Architecture&) const = default;
  std::string text() const { return concat(number, suffix ? std::string(1, suffix) : ""); }
  /// True if the target has Hopper's warpgroup matrix instructions (wgmma), which no other target has.
  bool has_wgmma() const { return number == 90 && suffix == 'a'; }
  /// True if a GPU with compute capability `gpu` (10 * major + minor) can run this code.
  bool runs_on(int gpu) const {
    if (suffix == 'a') return gpu == number;
    return gpu >= number && (suffix == 0 || gpu / 10 == number / 10);
  }
};

constexpr int kMinArchitecture = 80;  // for bf16 matrix instructions and asynchronous copies to shared memory

/// Parses a list like "80 90a"; throws Error if a word is not an architecture.
inline std::vector<Architecture> parse_architectures(const std::string& list) {
  std::vector<Architecture> architectures;
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    const size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
    const std::string suffix = word.substr(digits);
    BLIPFT_CHECK(digits >= 2 && digits <= 3 && (suffix.empty() || suffix == "a" || suffix == "f"),
                 "CUDA_ARCH: found \"", word, "\", expected numbers like 80 or 90a");
    architectures.push_back({std::stoi(word.substr(0, digits)), suffix.empty() ? '\0' : suffix[0]});
  }
  return architectures;
}

/// Returns the CUDA_ARCH list for a program that runs on `built` and on compute capability `gpu`.
inline std::string architectures_with(std::vector<Architecture> built, int gpu) {
  built.push_back({gpu, gpu == 90 ? 'a' : '\0'});
  std::sort(built.begin(), built.end(),
            [](const Architecture& x, const Architecture& y) { return x.number < y.number; });
  std::string text;
  for (const Architecture& a : built) text += concat(text.empty() ? "" : " ", a.text());
  return text;
}

/// Returns the code of a program built for `built` that GPU `name` of compute capability `major`.`minor` runs: the
/// latest that it can run. If there is none, throws a UserError that names the GPU and a sufficient CUDA_ARCH.
inline Architecture code_for(const std::vector<Architecture>& built, const std::string& name, int major, int minor) {
  const int gpu = 10 * major + minor;
  BLIPFT_USER_CHECK(gpu >= kMinArchitecture, name, " has compute capability ", major, ".", minor, "; blipft needs ",
                    kMinArchitecture / 10, ".", kMinArchitecture % 10,
                    " or later; use another GPU, or parallel.device=cpu");
  const auto rank = [](const Architecture& a) { return std::tuple(a.number, a.suffix == 'a', a.suffix == 'f'); };
  std::optional<Architecture> best;
  for (const Architecture& a : built)
    if (a.runs_on(gpu) && (!best || rank(*best) < rank(a))) best = a;
  if (best) return *best;
  std::string list;
  for (const Architecture& a : built) list += concat(list.empty() ? "" : " ", a.text());
  throw UserError(concat("this blipft was built for CUDA_ARCH=\"", list, "\", and ", name, " has compute capability ",
                         major, ".", minor, "; build with `make CUDA_ARCH=\"", architectures_with(built, gpu), "\"`"));
}

/// The code that a GPU has loaded.
struct LoadedCode {
  Architecture architecture;
  bool by_driver = false;  ///< the driver compiled it from PTX because the program has no machine code for this GPU

  bool operator==(const LoadedCode&) const = default;
  /// Text for messages: "sm_90a code (wgmma)".
  std::string text() const {
    return concat("sm_", architecture.text(), " code", architecture.has_wgmma() ? " (wgmma)" : "",
                  by_driver ? " (compiled from PTX by the driver)" : "");
  }
};

}  // namespace blipft
