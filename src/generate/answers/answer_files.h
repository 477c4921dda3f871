// The folder of one generation: generated.jsonl (of questions choices.jsonl), result files, scores and the page. While
// texts are generated, each rank appends its lines to a partial file; the file itself is written at the end, in the
// order of the samples.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/evaluate.h"
#include "io/line_file.h"

namespace blipft {

class AnswerFiles {
 public:
  /// Makes <output.path>/generated-0001, or the first number that is free: nothing that is there is touched. `lines`:
  /// "generated" or "choices". Called by all ranks.
  AnswerFiles(const Config& config, const World& world, const std::string& lines);
  const std::string& folder() const { return folder_; }
  /// Appends a line to this rank's partial file: generated.partial.jsonl, with several ranks
  /// generated.rank0001.partial.jsonl.
  void add(const std::string& line);
  /// Waits, some seconds at most, until the lines so far are written.
  void settle() const { (void)lines_->settle(std::chrono::seconds(2)); }
  /// Throws UserError where lines were lost. Called by all ranks; rank 0 then has all lines, in no order.
  std::vector<std::string> all_lines();
  /// Writes a new file whole, on rank 0. Throws UserError if something has that name.
  void write(const std::string& name, const std::string& text) const;
  /// Writes generated.jsonl (or choices.jsonl) on rank 0: `lines` in the order of their "sample". Returns its path.
  std::string write_lines(const std::vector<std::string>& lines) const;
  /// Removes this rank's partial file, whose lines write_lines() has written. What has taken its name stays.
  void remove_partial() const;

 private:
  const World& world_;
  std::string folder_, name_;              // name_: "generated" or "choices"
  std::string partial_;                    // the path of this rank's partial file, and what it is
  uint64_t partial_device_ = 0, partial_inode_ = 0;
  std::string mine_;                       // this rank's lines, for rank 0
  std::unique_ptr<io::LineFile> lines_;
};

/// A line each: name, value, standard error.
void print_scores(const std::vector<Score>& scores);

}  // namespace blipft
