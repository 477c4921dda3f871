// ContentCheck: whether all ranks read the same weights, texts and pictures, and a resumed run those that it began with.
//
// Names, sizes and headers are compared before anything is trained (same_run.h). Contents take too long for that: threads
// read them beside the first steps, and ranks agree on them when the last has them, before the first checkpoint or
// saved model at the latest.
#pragma once

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agreement/same_run.h"
#include "blipft/checkpoint.h"
#include "blipft/comm.h"
#include "blipft/config.h"
#include "checkpoint/resume.h"
#include "engine/run_data.h"

namespace blipft {

/// Files that weights are read from.
struct WeightFiles {
  std::string kind;                        ///< begins the names of facts: "model file"
  std::shared_ptr<const SafetensorsReader> reader;
  bool recorded = true;                    ///< checkpoints keep its digests
};

/// Of each file of `source`: its digest, which does not depend on who reads what. Reads all of it with `threads` threads.
Facts content_facts(const WeightFiles& source, int64_t threads);
/// The digest of what Dataset::identify_contents() tells; see data_fact().
Fact data_content_fact(const std::string& key, const std::string& path, const Dataset& dataset);

/// Compares the configuration and the samples that it names in `key`, contents included. Called by all ranks; throws AgreedError.
void check_same_samples(const Config& config, const std::string& key, const std::string& path, const Dataset& dataset,
                        const World& world);
/// Compares the contents of `sources` at once. Reads nothing if all ranks have opened the very same files. Called by all ranks;
/// throws AgreedError that names a file and a rank.
void check_same_weights(const Config& config, const World& world, std::vector<WeightFiles> sources, int64_t threads);

class ContentCheck {
 public:
  /// `resume`: that the run goes on from, or null. All of it outlives this. `threads`: of this rank, that read.
  ContentCheck(const Config& config, const World& world, const ResumePoint* resume, int64_t threads);
  /// Stops reading.
  ~ContentCheck();
  ContentCheck(const ContentCheck&) = delete;
  ContentCheck& operator=(const ContentCheck&) = delete;

  /// Begins to read what is compared of the data, which outlives this. If it is not called, finish() compares the weights alone.
  void begin_data(const RunData& data);
  /// Begins to read the weights' files, once they were read for the run: then they are in memory, as a rule. Ranks that
  /// have opened the very same files share them out. Called by all ranks.
  void begin_weights(std::vector<WeightFiles> sources);
  /// Whether all ranks have read, so that finish() need not wait. Called by all ranks, alike, after both of the above.
  bool ready() const;
  /// Waits for that, and compares. Called by all ranks; throws AgreedError that names a file or the data, and a rank.
  void finish();
  bool done() const { return done_; }
  /// For the run's checkpoints, after finish(); on rank 0.
  const std::map<std::string, std::string>& recorded() const { return recorded_; }
  /// What is not as it was, and may be; "" for nothing.
  const std::string& notes() const { return notes_; }

 private:
  struct Chunk {
    const WeightFiles* source;
    std::string file;                      // path
    int64_t offset, bytes;
  };
  friend Facts content_facts(const WeightFiles& source, int64_t threads);
  static std::vector<Chunk> chunks_of(const std::vector<WeightFiles>& sources);
  static std::vector<uint32_t> read(const std::vector<Chunk>& chunks, int64_t threads, const std::atomic<bool>& stops);
  static Facts facts_of(const std::vector<Chunk>& chunks, const std::vector<uint32_t>& sums);
  std::vector<uint32_t> compare_weights(const std::vector<uint32_t>& mine) const;
  void record(const Facts& data, const std::vector<uint32_t>& sums);

  const Config& config_;
  const World& world_;
  const ResumePoint* resume_;
  const int64_t threads_;
  std::vector<WeightFiles> sources_;
  std::vector<Chunk> chunks_;              // of all files
  std::vector<uint64_t> files_of_ranks_;   // the same number: the very same files
  bool done_ = false;
  std::map<std::string, std::string> recorded_;
  std::string notes_;
  std::atomic<bool> stops_{false};
  std::future<Facts> data_;                // last: their threads use the members above
  std::future<std::vector<uint32_t>> weights_;
};

}  // namespace blipft
