// SameRun: whether all ranks were started with the same program, configuration, model and data. Ranks that were not
// would train on silently, each its own way, or wait for each other for ever.
#pragma once

#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/config.h"
#include "engine/run_data.h"

namespace blipft {

/// Something that must be the same on every rank.
struct Fact {
  std::string name;                        ///< "train.lr", "model file config.json"; different from the others'
  std::string value;                       ///< or sizes and a digest
  std::string place = {};                  ///< where this rank has it from; for messages, not compared
  bool evaluates = false;                  ///< nothing is trained by it: it may be another when a run is resumed
};
using Facts = std::vector<Fact>;

/// The program (commit and build) and the effective configuration, key by key. Left out is what may differ from machine
/// to machine: paths of models and data (their content is compared), threads and the steps prepared ahead.
Facts config_facts(const Config& config);
/// The files of `directory` that a run reads: names, sizes, digests of the headers of safetensors (with `weights`) and
/// of all of config.json, tokenizer and processor files. `kind` begins their names: "model file". A folder that cannot
/// be read has none: opening it says why.
Facts file_facts(const std::string& kind, const std::string& directory, bool weights);
/// Size and digest of a whole file, or why it cannot be read.
Fact whole_file_fact(const std::string& name, const std::string& path);
/// The number of samples, and a digest of what Dataset::identify() tells; `key`: where they come from, "data.path".
Fact data_fact(const std::string& key, const std::string& path, const Dataset& dataset);

/// What the run reads: files of the model, samples of the data.
Facts read_facts(const Config& config, const RunData& data);

/// Throws AgreedError where a rank has other facts than rank 0: the lowest such rank names the first that differs, with
/// both values, cut to a line, and all others by name. Called by all ranks, each of which has its facts at hand.
/// Costs two collectives of 8 bytes; lists of facts travel only where they differ.
void compare_facts(const World& world, const Facts& facts, const std::string& advice);

/// Compares config_facts(). Called by all ranks before anything depends on the configuration.
void check_same_config(const Config& config, const World& world);
/// Compares file_facts() of the model and of adapter.path. Called by all ranks.
void check_same_files(const Config& config, const World& world);
/// To be called by all ranks when the data is open.
void check_same_data(const Config& config, const RunData& data, const World& world);

}  // namespace blipft
