// RunId: by which the things that a run has written are known as this run's.
#pragma once

#include <map>
#include <string>

#include "blipft/comm.h"

namespace blipft {

/// Its key among what a checkpoint knows of its run (StateIndex::run).
constexpr const char* kRunId = "run_id";
/// "" where a checkpoint of an earlier version does not say it.
std::string run_id_of(const std::map<std::string, std::string>& run);

/// 32 hex digits, which no other run has.
std::string new_run_id();

/// The id of a run, the same on every rank: `earlier`, that of the checkpoint it goes on from, or a new one that rank 0
/// draws where there is none (""; a checkpoint of an earlier version has none). Called by all ranks.
std::string agree_on_run_id(const World& world, const std::string& earlier);

/// The files by which a run folder explains itself.
constexpr const char *kConfigFile = "config.yaml", *kLogFile = "log.txt", *kMetricsFile = "metrics.jsonl";
/// Returns the first line of such a file, which contains the run id. The first line of metrics.jsonl is a JSON row.
std::string record_heading(const std::string& name, const std::string& run_id);
/// Returns the id of the run that wrote this file, or "" if the file does not exist or this program did not write it.
/// Does not follow links and never blocks.
std::string run_of_record_file(const std::string& folder, const std::string& name);

}  // namespace blipft
