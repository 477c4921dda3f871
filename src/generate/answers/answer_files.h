// The folder of one generation: generated.jsonl (of questions choices.jsonl), which grows as texts are done; result files,
// scores and the page at its end.
#pragma once

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
  /// A line of this rank's generated.jsonl (with several ranks generated.rank0001.jsonl).
  void add(const std::string& line);
  /// Waits, some seconds at most, until the lines so far are written.
  void settle() const { (void)lines_->settle(std::chrono::seconds(2)); }
  /// Throws UserError where lines were lost. Called by all ranks; rank 0 then has all lines, in no order.
  std::vector<std::string> all_lines();
  /// Writes a file whole, on rank 0.
  void write(const std::string& name, const std::string& text) const;
  /// The same of lines of JSON, in the order of their "sample".
  void write_sorted(const std::string& name, const std::vector<std::string>& lines) const;

 private:
  const World& world_;
  std::string folder_;
  std::string mine_;                       // this rank's lines, for rank 0
  std::unique_ptr<io::LineFile> lines_;
};

/// A line each: name, value, standard error.
void print_scores(const std::vector<Score>& scores);

}  // namespace blipft
