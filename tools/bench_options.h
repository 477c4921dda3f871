// Options of the benches (op_bench, gemm_bench): "--name VALUE" and "--flag", and the main() of a bench.
#pragma once

#include <charconv>
#include <exception>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "blipft/error.h"

namespace blipft::bench {

struct Option {
  std::string name;   ///< "--batch"
  std::string value;  ///< the default; "" for a flag
  std::string takes;  ///< the form of its value, "N,N,..."; "" for a flag
};

class Options {
 public:
  /// Throws UserError for an option that is not among `known` or lacks its value.
  Options(std::vector<Option> known, int argc, char** argv) : known_(std::move(known)) {
    for (int i = 1; i < argc; ++i) {
      Option* option = find(argv[i]);
      BLIPFT_USER_CHECK(option, "found \"", argv[i], "\", expected some of", usage());
      BLIPFT_USER_CHECK(option->takes.empty() || i + 1 < argc, option->name, " needs ", option->takes);
      option->value = option->takes.empty() ? "given" : argv[++i];
    }
  }

  const std::string& text(const std::string& name) const {
    for (const Option& option : known_)
      if (option.name == name) return option.value;
    throw Error(concat("the bench has no option ", name));
  }
  bool flag(const std::string& name) const { return !text(name).empty(); }
  int64_t number(const std::string& name) const { return parse(name, text(name)); }
  /// Returns numbers separated by commas.
  std::vector<int64_t> numbers(const std::string& name) const {
    std::vector<int64_t> list;
    std::istringstream in(text(name));
    for (std::string part; std::getline(in, part, ',');) list.push_back(parse(name, part));
    return list;
  }

 private:
  Option* find(const std::string& name) {
    for (Option& option : known_)
      if (option.name == name) return &option;
    return nullptr;
  }
  std::string usage() const {
    std::string all;
    for (const Option& option : known_) all += " " + option.name + (option.takes.empty() ? "" : " " + option.takes);
    return all;
  }
  static int64_t parse(const std::string& name, const std::string& word) {
    int64_t value = 0;
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    BLIPFT_USER_CHECK(error == std::errc() && stop == end && value >= 0, name, ": found \"", word,
                      "\", expected a whole number");
    return value;
  }

  std::vector<Option> known_;
};

/// Runs `bench`, prints its error if it has one, and returns main()'s status.
inline int run_main(const char* program, const std::function<void()>& bench) {
  try {
    bench();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << program << ": " << error.what() << "\n";
    return 1;
  }
}

}  // namespace blipft::bench
