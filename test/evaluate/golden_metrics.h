// The golden files of tools/blipft_golden/metrics.py.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "io/json.h"
#include "support/golden_files.h"

namespace blipft::testing {

inline nlohmann::json golden_metrics(const std::string& name) {
  return io::read_json_file(golden_path("metrics/" + name));
}

}  // namespace blipft::testing
