// RunId: the id of a run. Everything that a run writes contains it, so that the files of a run can be recognized.
#pragma once

#include <map>
#include <string>

#include "blipft/comm.h"

namespace blipft {

/// The key of the run id in StateIndex::run, the facts about the run in a checkpoint.
constexpr const char* kRunId = "run_id";
/// Returns the run id among the facts of a checkpoint; "" if an earlier version wrote the checkpoint, without an id.
std::string run_id_of(const std::map<std::string, std::string>& run);

/// Returns a new random id of 32 hex digits.
std::string new_run_id();

/// Returns the id of a run, the same on every rank: `earlier`, the id in the checkpoint from which the run resumes, or
/// a new one of rank 0 if `earlier` is empty. Called by all ranks.
std::string agree_on_run_id(const World& world, const std::string& earlier);

/// The names of the record files; see record_files.h.
constexpr const char *kConfigFile = "config.yaml", *kLogFile = "log.txt", *kMetricsFile = "metrics.jsonl";
/// Returns the first line of a record file, which contains the run id. The first line of metrics.jsonl is a JSON row.
std::string record_heading(const std::string& name, const std::string& run_id);
/// Returns the id of the run that wrote this record file, or "" if the file does not exist or this program did not
/// write it. Does not follow links and never blocks.
std::string run_of_record_file(const std::string& folder, const std::string& name);

}  // namespace blipft
