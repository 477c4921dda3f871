// ContentCheck: checks that all ranks read the same weights, texts and pictures, and that a resumed run reads those
// that it started with.
//
// Names, sizes and headers are compared before training (same_run.h). Contents take too long for that: threads read
// them during the first steps. The ranks compare them when all have read them, and before the first checkpoint or saved
// model.
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
#include "blipft/run_settings.h"
#include "checkpoint/resume.h"
#include "engine/run_data.h"

namespace blipft {

/// The files that weights are loaded from.
struct WeightFiles {
  std::string kind;                        ///< prefix of the names of facts: "model file"
  std::shared_ptr<const SafetensorsReader> reader;
  bool recorded = true;                    ///< true if checkpoints record the digests
};

/// Returns the digest of each file of `source`; it does not depend on how ranks share the reading. Uses `threads`
/// threads.
Facts content_facts(const WeightFiles& source, int64_t threads);
/// Returns the digest of what Dataset::identify_contents() reports; see data_fact().
Fact data_content_fact(const std::string& key, const std::string& path, const Dataset& dataset);

/// Compares the samples of key `key` of the run file over all ranks, including contents. All ranks must call it.
/// Throws AgreedError.
void check_same_samples(const std::string& key, const std::string& path, const Dataset& dataset,
                        const World& world);
/// Compares the contents of `sources` and returns when that is done. Reads nothing if all ranks have opened the same
/// files, not copies. All ranks must call it. Throws AgreedError with a file and a rank.
void check_same_weights(const RunSettings& config, const World& world, std::vector<WeightFiles> sources, int64_t threads);

class ContentCheck {
 public:
  /// `resume`: the checkpoint that the run resumes from, or null. The arguments must outlive this object. `threads`:
  /// number of reading threads of this rank.
  ContentCheck(const RunSettings& config, const World& world, const ResumePoint* resume, int64_t threads);
  /// Stops reading.
  ~ContentCheck();
  ContentCheck(const ContentCheck&) = delete;
  ContentCheck& operator=(const ContentCheck&) = delete;

  /// Starts to read the data, which must outlive this object. If it is not called, finish() compares only the weights.
  void begin_data(const RunData& data);
  /// Starts to read the files of the weights. To be called after the weights were loaded, because the files are then
  /// usually in the page cache. Ranks that have opened the same files, not copies, read a part each. All ranks must
  /// call it.
  void begin_weights(std::vector<WeightFiles> sources);
  /// Returns true if all ranks have finished reading, so that finish() does not wait. All ranks must call it, after
  /// begin_data() and begin_weights().
  bool ready() const;
  /// Waits until all is read and compares it. All ranks must call it. Throws AgreedError with a file (or the data) and
  /// a rank.
  void finish();
  bool done() const { return done_; }
  /// The facts for the checkpoints of the run, after finish(); on rank 0.
  const std::map<std::string, std::string>& recorded() const { return recorded_; }
  /// The allowed differences from the checkpoint; "" if there are none.
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

  const RunSettings& config_;
  const World& world_;
  const ResumePoint* resume_;
  const int64_t threads_;
  std::vector<WeightFiles> sources_;
  std::vector<Chunk> chunks_;              // chunks of all files
  std::vector<uint64_t> files_of_ranks_;   // [ranks]: equal for ranks that opened the same files
  bool done_ = false;
  std::map<std::string, std::string> recorded_;
  std::string notes_;
  std::atomic<bool> stops_{false};
  std::future<Facts> data_;                // destroyed first: their threads use the members above
  std::future<std::vector<uint32_t>> weights_;
};

}  // namespace blipft
