// Command line: its options, as reading them and --help both need them.
#pragma once

#include <string>
#include <vector>

namespace blipft {

struct Option {
  const char* name;
  const char* short_name;  ///< "" for none
  const char* value;       ///< what follows it, in [] where it may be left out; "" for nothing
  const char* doc;
};

const std::vector<Option>& command_line_options();
/// How the program is called, in one line.
std::string usage_line();

}  // namespace blipft
