// The fuzz targets: a row for each, with the name of its file and of its folder in corpus/.
#pragma once

#include <string_view>

#define BLIPFT_FUZZ_TARGETS(row) \
  row(run_file)                  \
  row(model_config)              \
  row(safetensors)               \
  row(checkpoint)                \
  row(tokenizer)                 \
  row(pattern)                   \
  row(metadata)                  \
  row(json_records)              \
  row(chat_template)             \
  row(tar)                       \
  row(picture)                   \
  row(references)

namespace blipft::testing {

#define BLIPFT_DECLARE(name) void fuzz_##name(std::string_view input);
BLIPFT_FUZZ_TARGETS(BLIPFT_DECLARE)
#undef BLIPFT_DECLARE

struct FuzzTarget {
  const char* name;
  void (*run)(std::string_view input);
};

inline constexpr FuzzTarget fuzz_targets[] = {
#define BLIPFT_ROW(name) {#name, fuzz_##name},
    BLIPFT_FUZZ_TARGETS(BLIPFT_ROW)
#undef BLIPFT_ROW
};

}  // namespace blipft::testing
