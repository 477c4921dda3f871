// Progress: the output on the terminal. Only rank 0 prints.
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
    int64_t samples_per_step = 0;          ///< samples of a step on all ranks
    int64_t ranks = 1;
    bool text_only = false;                ///< true if the model reads no pictures: tokens are then counted too
    int64_t memory_bytes = 0;              ///< memory of one rank
  };
  Progress(const Config& config, const Run& run, bool silent);

  void step(const StepEvent& event) override;
  /// Prints the memory lines of a step; after the first two steps only if they changed.
  void memory(const MemoryEvent& event) override;
  void validation(const ValidationEvent& event) override;
  void evaluation(const EvaluationEvent& event) override;
  void checkpoint(const Checkpoints::Outcome& written) override;
  void warning(const std::string& message) override;
  /// Prints the last line of the steps: time, peak memory, mean rates.
  void print_totals(double train_seconds, int64_t peak_bytes);
  /// "5 steps on 4 ranks, loss 5.21 to 4.98, 12.3 samples/s, 410 tokens/s, 1.23 GiB a rank", for the steps so far.
  std::string summary(int64_t bytes) const;
  double epoch_loss() const { return losses_.of_epoch / static_cast<double>(losses_.steps_of_epoch ? losses_.steps_of_epoch : 1); }

 private:
  void end_line();
  void count(const StepResult& result, double seconds);
  std::string rates(double samples, double tokens, double seconds, const char* between) const;
  std::string mean_rates(const char* between) const;  // rates over all steps but the first
  using Clock = std::chrono::steady_clock;
  Config config_;
  Run run_;
  bool silent_, terminal_;
  bool line_open_ = false;
  Clock::time_point printed_{};
  std::set<std::vector<std::string>> printed_memory_;
  int64_t steps_ = 0;
  struct Losses {
    double of_epoch = 0;                   // sum of the finite losses of the epoch
    int64_t steps_of_epoch = 0;
    double first = 0, last = 0;
  } losses_;
  struct Smoothed {
    double seconds = 0, flops = 0, tokens = 0;
  } smooth_;                               // moving averages of a step
  struct Timed {
    int64_t steps = 0;
    double seconds = 0, tokens = 0;
  } timed_;                                // all steps but the first, which is slow; the first if there is no other
};

/// The header before training. `batch_text`: how a step is cut into micro-batches.
void print_header(const Config& config, const Model& model, const std::string& world_text, const std::string& device_text,
                  const std::string& start_text, const std::string& batch_text, const std::string& plan_text);

}  // namespace blipft
