// Smoke: the trial of a run; see make_smoke() in config.h. And the notes of a configuration.
#include <cstdio>

#include "blipft/config.h"

namespace blipft {

namespace {
constexpr int64_t kSmokeSamples = 4;        // that are generated
}

void tell_notes(const Config& config) {
  for (const std::string& note : config.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

// Epochs may be shorter than the trial: as many follow as it takes.
void make_smoke(Config& config, int64_t steps) {
  config.smoke_steps = steps;
  config.train.max_steps = steps;
  config.train.max_epochs = 1'000'000;
  config.train.limit_train_batches = 1;
  config.train.val_check_interval = validates(config) ? steps : 0;
  config.evaluate.samples = std::min<int64_t>(config.evaluate.samples, kSmokeSamples);
  config.evaluate.every = 1;
  config.checkpoint = {};
  config.output.save_model = config.output.save_merged = config.output.overwrite = false;
  config.output.save = OutputSection().save;
  for (const char* key : {"checkpoint.path", "checkpoint.resume", "output.overwrite"}) config.places.erase(key);
}

}  // namespace blipft
