// The weights that generate texts: of a model folder, of an adapter and its base, or of a checkpoint.
#pragma once

#include <optional>
#include <string>

#include "blipft/config.h"

namespace blipft {

/// The configuration of the run that trained the weights, and its file: checkpoint.json, or config.yaml next to a saved
/// model or adapter.
struct TrainingRun {
  Config config;
  std::string file;
};

struct WeightSource {
  Config config;                           ///< has model.path and the adapter of the weights; nothing is frozen by name
  std::string checkpoint;                  ///< a folder whose weights replace those of the model; empty: none
  std::string text;                        ///< for people: "the adapter in runs/x/adapter on NousResearch/Llama-2-7b"
  std::string folder = {};                 ///< folder of the trained model, adapter or checkpoint; empty for a base model
  std::string missing = {};                ///< for people: why these may not be the intended weights, "runs/x holds no
                                           ///< trained model"; else empty
  std::optional<TrainingRun> run = {};     ///< nullopt if the run is unknown
};

/// The weights that generate, and the configuration of the generation.
struct GenerationSource {
  Config config;                           ///< its notes list the values that come from the weights' run
  WeightSource weights;
};

/// Finds the weights that generate.weights names. The returned configuration is `config` with the values of the run
/// that trained the weights, for the keys of keys_of_a_run(). Two exceptions: keys of the command line keep their
/// value, and with_held_out_of_run() sets data.val_split_fraction. The run of an adapter also sets model.path if that
/// folder exists. Throws UserError if the folder is missing or is no model, adapter or checkpoint, or if the
/// configuration of the run cannot be read.
GenerationSource generation_source(Config config);

/// Returns `config` with data.val_path, data.val_split_fraction and train.seed of the weights' run, if that is known
/// and neither generate.path nor data.val_path names samples: --evaluate scores the samples that the run held out. The
/// notes name only the values that change.
Config with_held_out_of_run(Config config, const WeightSource& weights);

/// Prints the notes of `config`, as with_held_out_of_run() returns it, and a warning if the samples that it scores are
/// those that trained the weights.
void print_samples(const Config& config, const WeightSource& weights);

}  // namespace blipft
