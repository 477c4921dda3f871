// The golden files of tools/make_metric_golden.py.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "io/json.h"

namespace blipft::testing {

inline nlohmann::json golden_metrics(const std::string& name) {
  return io::read_json_file("test/golden/metrics/" + name);
}

}  // namespace blipft::testing
