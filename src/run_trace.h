// RunTrace: fills a rank's trace file from what the trainer knows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blipft/arena.h"
#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/model.h"
#include "blipft/trace.h"
#include "step_program.h"

namespace blipft {

class RunTrace {
 public:
  RunTrace(const Config& config, const World& world, Device& device, const Comm& comm, const Model& model, const Arena& arena,
           const SpanRecorder* spans);
  static std::string path(const Config& config, int64_t rank);
  void step(const StepResult& result, int64_t epoch, double seconds, double flops, double data_wait, const StepProgram& program);
  void memory(int64_t step, const std::vector<Arena::PhaseUse>& phases);
  void close();

 private:
  int64_t now_ns() const;
  void align_clock(const World& world, Device& device);
  std::unique_ptr<Trace> trace_;
  const SpanRecorder* spans_;
  int64_t samples_ = 0;                    // of a step of this rank
  int64_t device_offset_ns_ = 0;           // trace clock minus device clock
  int64_t start_ns_ = 0;                   // host clock at the run's start
};

}  // namespace blipft
