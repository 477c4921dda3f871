// The samples that a run held out; see held_out.h.
#include "generate/held_out.h"

#include <cstdio>
#include <filesystem>

#include "blipft/error.h"

namespace blipft {

namespace {

// "data.val_split_fraction=0.1 of train.seed=7"
std::string split_text(const Config& config) {
  if (!config.data.val_path.empty()) return concat("data.val_path=", config.data.val_path);
  const std::string fraction = concat("data.val_split_fraction=", config.data.val_split_fraction);
  return config.data.val_split_fraction == 0 ? fraction : concat(fraction, " of train.seed=", config.train.seed);
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code error;
  return one == other || std::filesystem::equivalent(one, other, error);
}

}  // namespace

Config with_held_out_of_run(Config config, const WeightSource& weights) {
  config.notes.clear();
  if (!config.generate.path.empty() || !config.data.val_path.empty()) return config;
  const std::optional<TrainingRun>& run = weights.run;
  if (!run || split_text(run->config) == split_text(config)) return config;
  config.notes.push_back(concat("what is scored is what the run of ", weights.folder, " held out: ", run->file, " has ",
                                split_text(run->config), ", and this command ", split_text(config),
                                "; generate.path names other samples"));
  config.data.val_path = run->config.data.val_path;
  config.data.val_split_fraction = run->config.data.val_split_fraction;
  config.train.seed = run->config.train.seed;
  for (const char* key : {"data.val_path", "data.val_split_fraction", "train.seed"}) config.places[key] = run->file;
  return config;
}

void tell_samples(const Config& config, const WeightSource& weights) {
  tell_notes(config);
  if (!config.generate.path.empty() || validates(config)) return;
  const std::optional<TrainingRun>& run = weights.run;
  if (!run || validates(run->config) || !is_same_file(config.data.path, run->config.data.path)) return;
  std::fprintf(stderr, "warning: %s: these samples trained the weights in %s, since the run held none out (%s). Name "
               "other samples in generate.path.\n",
               config.data.path.c_str(), weights.folder.c_str(), run->file.c_str());
}

}  // namespace blipft
