// SameRun: checks that all ranks were started with the same program, configuration, model and data. Otherwise ranks
// would silently train different models or wait for each other forever.
#pragma once

#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/engine_settings.h"
#include "engine/run_data.h"

namespace blipft {

/// A value that must be equal on all ranks.
struct Fact {
  std::string name;                        ///< "train.lr", "model file config.json"; each name occurs once in a list
  std::string value;                       ///< the value of a key, or size and digest of a file
  std::string location = {};                  ///< origin of this rank's value; for messages, not compared
  bool evaluates = false;                  ///< does not affect training: it may change when a run is resumed
};
using Facts = std::vector<Fact>;

/// Returns facts about the files of `directory` that a run reads: name, size and digest of each. The digest of a
/// safetensors file (only with `weights`) covers its header; that of config.json, tokenizer and processor files covers
/// up to 256 MiB. `kind` is the start of the facts' names: "model file". A folder that cannot be read has no facts;
/// opening it later reports the reason.
Facts file_facts(const std::string& kind, const std::string& directory, bool weights);
/// Returns size and digest of a whole file, or the reason why it cannot be read.
Fact whole_file_fact(const std::string& name, const std::string& path);
/// Returns the number of samples and a digest of Dataset::identify(). `key`: the key of `path`, such as "data.path".
Fact data_fact(const std::string& key, const std::string& path, const Dataset& dataset);

/// Returns a fact about `text`, the template that data.chat_template names, or none if it is empty. With auto it is
/// empty, because file_facts() covers the template of the model.
Facts template_facts(const EngineSettings& config, const std::string& text);

/// Returns facts about the inputs of the run: files of the model, samples of the data, the chat template.
Facts read_facts(const EngineSettings& config, const RunData& data);

/// Throws AgreedError if the facts of a rank differ from those of rank 0. The lowest such rank reports the first
/// different fact with both values, cut to a line, and the names of the others. Called by all ranks.
/// Costs two collectives of 8 bytes; lists of facts are sent only if they differ.
void compare_facts(const World& world, const Facts& facts, const std::string& advice);

/// Compares file_facts() of the model and of adapter.path. Called by all ranks.
void check_same_files(const EngineSettings& config, const World& world);
/// Compares read_facts(). All ranks must call it after they have opened the data.
void check_same_data(const EngineSettings& config, const RunData& data, const World& world);

}  // namespace blipft
