// Progress: what the user reads on the terminal. Only rank 0 prints.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "blipft/arena.h"
#include "blipft/config.h"
#include "train/observers/training_observer.h"

namespace blipft {

class Progress final : public TrainingObserver {
 public:
  struct Run {
    int64_t total_steps = 0, steps_per_epoch = 0, first_step = 0;
    int64_t samples_per_step = 0;          ///< of the whole world
    int64_t ranks = 1;
    bool text_only = false;                ///< the model reads no pictures: tokens are counted too
    int64_t memory_bytes = 0;              ///< of one rank
  };
  Progress(const Config& config, const Run& run, bool silent);

  void step(const StepEvent& event) override;
  /// Prints the tutorial's memory lines of a step, after the first two steps only if they say something new.
  void memory(const MemoryEvent& event) override;
  void validation(const ValidationEvent& event) override;
  void evaluation(const EvaluationEvent& event) override;
  void checkpoint(const Checkpoints::Outcome& written) override;
  void warning(const std::string& message) override;
  /// Prints the last line of the steps: time, peak memory, mean rates.
  void print_totals(double train_seconds, int64_t peak_bytes);
  /// "5 steps on 4 ranks, loss 5.21 to 4.98, 12.3 samples/s, 410 tokens/s, 1.23 GiB a rank": of the steps so far.
  std::string summary(int64_t bytes) const;
  double epoch_loss() const { return epoch_loss_ / static_cast<double>(epoch_steps_ ? epoch_steps_ : 1); }

 private:
  void end_line();
  void count(const StepResult& result, double seconds);
  std::string rates(double samples, double tokens, double seconds, const char* between) const;
  std::string mean_rates(const char* between) const;  // of all steps but the first
  using Clock = std::chrono::steady_clock;
  Config config_;
  Run run_;
  bool silent_, terminal_;
  bool line_open_ = false;
  Clock::time_point printed_{};
  std::set<std::vector<std::string>> printed_memory_;
  double epoch_loss_ = 0;
  int64_t epoch_steps_ = 0;
  double smooth_seconds_ = 0, smooth_flops_ = 0, smooth_tokens_ = 0;
  int64_t steps_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
  int64_t timed_steps_ = 0;                // all but the first, which is slow; that where there is no other
  double timed_seconds_ = 0, timed_tokens_ = 0;
};

/// The header before training. `batch_text`: how a step is cut into micro-batches.
void print_header(const Config& config, const Model& model, const std::string& world_text, const std::string& device_text,
                  const std::string& start_text, const std::string& batch_text, const std::string& plan_text);

}  // namespace blipft
