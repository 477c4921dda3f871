// Smoke: the trial of a run; see make_smoke() in config.h. And the notes of a configuration.
#include <algorithm>
#include <cstdio>

#include "blipft/config.h"
#include "blipft/error.h"
#include "config/config_schema.h"

namespace blipft {

namespace {
constexpr int64_t kSmokeSamples = 4;        // that are generated
}

Override override_of(const std::string& argument) {
  if (argument.starts_with(smoke_override)) return {argument, argument.substr(std::string(smoke_override).size())};
  return {override_location + brief(argument) + "\"", argument};
}

// A number of micro-batches that is given there says itself that a step has so many times the samples; a micro-batch does not.
void note_samples_of_a_step(Config& config, const StepsSection& of_file) {
  const StepsSection& now = config.steps;
  const std::string location = location_of(config, "train.batch_size");
  const bool alone = location.starts_with(override_location) &&
                     !location_of(config, "train.accumulate_grad_batches").starts_with(override_location);
  const int64_t before = of_file.batch_size * of_file.accumulate_grad_batches, ranks = config.parallel.devices;
  const int64_t samples = now.batch_size * now.accumulate_grad_batches;
  const bool known = now.total_batch_size == 0 && of_file.total_batch_size == 0 && samples > 0 && before > 0;
  if (!alone || !known || now.accumulate_grad_batches == 1 || samples == before) return;
  config.notes.push_back(concat(location, ": a step now has ", now.batch_size, " x ", now.accumulate_grad_batches, " = ", samples,
                                " samples a rank (train.batch_size x train.accumulate_grad_batches), the run file's has ",
                                of_file.batch_size, " x ", of_file.accumulate_grad_batches, " = ", before,
                                "; train.total_batch_size=", before * std::max<int64_t>(1, ranks),
                                ranks > 0 ? "" : " (times the ranks)", " beside it keeps these"));
}

void print_notes(const Config& config) {
  for (const std::string& note : config.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

// Epochs may be shorter than the trial: as many follow as it takes.
void make_smoke(Config& config, int64_t steps) {
  config.smoke_steps = steps;
  config.steps.max_steps = steps;
  config.steps.max_epochs = 1'000'000;
  config.steps.limit_train_batches = 1;
  config.train.val_check_interval = validates(config) ? steps : 0;
  config.evaluate.samples = std::min<int64_t>(config.evaluate.samples, kSmokeSamples);
  config.evaluate.every = 1;
  config.checkpoint = {};
  config.output.save_model = config.output.save_merged = config.output.overwrite = false;
  config.output.save = OutputSection().save;
  for (const char* key : {"checkpoint.path", "checkpoint.resume", "output.overwrite"}) config.locations.erase(key);
}

}  // namespace blipft
