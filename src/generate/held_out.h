// What --evaluate scores where no samples are named: those that the run held out that trained the weights.
#pragma once

#include "generate/weight_source.h"

namespace blipft {

/// `config` with data.val_path, data.val_split_fraction and train.seed as that run had them, where it is known, and neither
/// generate.path nor data.val_path names samples. Its notes say where `config` had something else, and nothing more.
Config with_held_out_of_run(Config config, const WeightSource& weights);

/// Prints the notes of `config`, as with_held_out_of_run() returns it, and a warning if the samples that it scores are
/// those that trained the weights.
void tell_samples(const Config& config, const WeightSource& weights);

}  // namespace blipft
