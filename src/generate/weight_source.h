// Whose weights generate texts: a model folder's, an adapter's beside its base, or a checkpoint's.
#pragma once

#include <optional>
#include <string>

#include "blipft/config.h"

namespace blipft {

struct WeightSource {
  Config config;                           ///< model.path, and adapter as it is on top of it; nothing is frozen by name
  std::string checkpoint;                  ///< a folder whose weights replace those of the model; empty: none
  std::string text;                        ///< for people: "the adapter in runs/x/adapter on NousResearch/Llama-2-7b"
  std::string folder = {};                 ///< of the trained model, adapter or checkpoint; empty: these are a base model's
  std::string missing = {};                ///< for people: why these may not be the weights that they mean, "runs/x holds no
                                           ///< trained model"; else empty
};

/// What generate.weights names. Throws UserError where nothing is there, or what is there is none of these.
WeightSource weight_source(const Config& config);

/// The configuration of the run that trained these weights, and the file that has it.
struct TrainingRun {
  Config config;
  std::string file;
};
/// As the checkpoint says it, or config.yaml beside a saved model or adapter where both are of one run; else not known. Throws
/// UserError where the file cannot be read.
std::optional<TrainingRun> training_run_of(const WeightSource& source);

}  // namespace blipft
