// TrainingObserver: receives the events of a training run. Observers are the terminal, the trace and the metrics file.
#pragma once

#include <string>
#include <vector>

#include "blipft/arena.h"
#include "checkpoint/checkpoints.h"
#include "engine/step_program.h"
#include "generate/validation_answers.h"

namespace blipft {

struct StepEvent {
  const StepResult& result;
  int64_t epoch;
  double seconds;                          ///< since the end of the previous step, on the device's clock
};

/// The loss of the validation samples, with the weights after `step`.
struct ValidationEvent {
  int64_t step;
  double loss;
  int64_t tokens;                          ///< labels, on all ranks
  double seconds;
};

/// Texts that were generated after `step`, and their scores.
struct EvaluationEvent {
  int64_t step;
  const ValidationScores& scores;
  double seconds;
};

/// A step whose memory is reported. `pass`: its pass in the arena, see StepProgram::pass_name().
struct MemoryEvent {
  int64_t step;
  std::string pass;
  const Arena& arena;
  const Device& device;
};

struct EndEvent {
  int64_t steps;                           ///< steps of the whole run, including those before a resume
  double train_seconds;
  std::string reason;                      ///< kDone, or the reason why the run stopped or is incomplete
};

/// Each event is sent once, in chronological order, on the training thread. An observer changes nothing and calls no
/// collective. It may throw UserError if the run is to end when it fails (trace.on_error: stop).
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  virtual void step(const StepEvent&) {}
  virtual void memory(const MemoryEvent&) {}
  virtual void validation(const ValidationEvent&) {}
  virtual void evaluation(const EvaluationEvent&) {}
  virtual void checkpoint(const Checkpoints::Outcome&) {}
  virtual void warning(const std::string&) {}
  virtual void end(const EndEvent&) {}
};

/// Passes each event to all observers, in the order in which they were added. They must outlive this object.
class TrainingObservers final : public TrainingObserver {
 public:
  void add(TrainingObserver& observer) { observers_.push_back(&observer); }
  void step(const StepEvent& event) override { send(&TrainingObserver::step, event); }
  void memory(const MemoryEvent& event) override { send(&TrainingObserver::memory, event); }
  void validation(const ValidationEvent& event) override { send(&TrainingObserver::validation, event); }
  void evaluation(const EvaluationEvent& event) override { send(&TrainingObserver::evaluation, event); }
  void checkpoint(const Checkpoints::Outcome& outcome) override { send(&TrainingObserver::checkpoint, outcome); }
  void warning(const std::string& text) override { send(&TrainingObserver::warning, text); }
  void end(const EndEvent& event) override { send(&TrainingObserver::end, event); }

 private:
  template <class Event>
  void send(void (TrainingObserver::*receive)(const Event&), const Event& event) {
    for (TrainingObserver* const observer : observers_) (observer->*receive)(event);
  }
  std::vector<TrainingObserver*> observers_;
};

}  // namespace blipft
