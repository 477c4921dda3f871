// Whose weights generate texts: a model folder's, an adapter's beside its base, or a checkpoint's.
#pragma once

#include <optional>
#include <string>

#include "blipft/config.h"

namespace blipft {

/// The configuration of the run that trained the weights, and the file that has it: checkpoint.json, or config.yaml beside a
/// saved model or adapter.
struct TrainingRun {
  Config config;
  std::string file;
};

struct WeightSource {
  Config config;                           ///< model.path, and adapter as it is on top of it; nothing is frozen by name
  std::string checkpoint;                  ///< a folder whose weights replace those of the model; empty: none
  std::string text;                        ///< for people: "the adapter in runs/x/adapter on NousResearch/Llama-2-7b"
  std::string folder = {};                 ///< of the trained model, adapter or checkpoint; empty: these are a base model's
  std::string missing = {};                ///< for people: why these may not be the weights that they mean, "runs/x holds no
                                           ///< trained model"; else empty
  std::optional<TrainingRun> run = {};     ///< nullopt if it is not known
};

/// The weights that generate, and the configuration that they generate with.
struct GenerationSource {
  Config config;                           ///< its notes name the values that are those of the weights' run
  WeightSource weights;
};

/// Finds the weights that generate.weights names. The configuration is `config` with the values that the run of the weights
/// had for keys_of_a_run(), except keys that the command line set, and data.val_split_fraction, which
/// with_held_out_of_run() decides. An adapter's run also decides model.path if that folder exists. Throws UserError if
/// nothing is there, if it is none of model, adapter and checkpoint, or if the run's configuration cannot be read.
GenerationSource generation_source(Config config);

/// Returns `config` with data.val_path, data.val_split_fraction and train.seed of the weights' run, if that is known and
/// neither generate.path nor data.val_path names samples: --evaluate scores what the run held out. The notes name only the
/// values that change.
Config with_held_out_of_run(Config config, const WeightSource& weights);

/// Prints the notes of `config`, as with_held_out_of_run() returns it, and a warning if the samples that it scores are
/// those that trained the weights.
void print_samples(const Config& config, const WeightSource& weights);

}  // namespace blipft
