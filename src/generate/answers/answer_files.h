// The folder of one generation: generated.jsonl (choices.jsonl for questions), result files, scores and the page. While
// texts are generated, each rank appends its lines to a partial file. At the end rank 0 writes the complete file, and
// the partial files are removed. An interrupted generation leaves them; it cannot be continued: the same command starts
// a new one in the next folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/evaluate.h"
#include "io/known_file.h"
#include "io/line_file.h"

namespace blipft {

class AnswerFiles {
 public:
  /// Creates <output.path>/generated-0001, or the first free number; existing folders are not touched. Called by all
  /// ranks.
  AnswerFiles(const Config& config, const World& world);
  const std::string& folder() const { return folder_; }
  /// Opens this rank's partial file: generated.partial.jsonl, with several ranks generated.rank0001.partial.jsonl.
  void open_partial();
  /// Appends a line to the partial file.
  void add(const std::string& line) { lines_->add(line); }
  /// Waits for at most 2 seconds until all lines added so far are written.
  void wait_until_written() const { (void)lines_->wait_until_written(std::chrono::seconds(2)); }
  /// Throws UserError if lines of the partial file were lost.
  void check_partial() const;
  /// Writes a new file whole, and returns its path. Throws UserError if something has that name.
  std::string write(const std::string& name, const std::string& text) const;
  /// Removes the partial file. A different file that now has its name is kept.
  void remove_partial() const { partial_.remove(); }

 private:
  const World& world_;
  std::string folder_;
  io::KnownFile partial_;
  std::unique_ptr<io::LineFile> lines_;
};

/// Prints a line for each score: name, value, standard error.
void print_scores(const std::vector<Score>& scores);

}  // namespace blipft
