// TraceQueue: the rows of a trace that are waiting to be written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "blipft/trace.h"
#include "trace/trace_tables.h"

namespace blipft {

struct TraceQueue {
  std::vector<StepRecord> steps;
  std::vector<SpanRecord> spans;
  std::vector<io::MemoryRow> memory;
  std::vector<io::PlanRow> plan, host_plan;
  std::vector<DeviceRecord> device;
  std::vector<DriverMemoryRecord> driver_memory;
  std::vector<ValidationRecord> validations;
  std::vector<io::EvaluationRow> evaluations;
  std::vector<io::EvaluationSampleRow> evaluation_samples;
  std::vector<io::EvaluationTextRow> evaluation_texts;
  std::vector<io::KernelRow> kernels;
  std::vector<Fp8Record> fp8;
  std::vector<StepSampleRecord> step_samples;
  std::vector<io::KernelNameRow> kernel_names;   // new names, in the order of their numbers
  std::optional<io::DroppedRow> dropped;

  size_t bytes() const {
    return steps.size() * sizeof(StepRecord) + spans.size() * sizeof(SpanRecord) +
           memory.size() * sizeof(io::MemoryRow) +
           (plan.size() + host_plan.size()) * sizeof(io::PlanRow) + device.size() * sizeof(DeviceRecord) +
           driver_memory.size() * sizeof(DriverMemoryRecord) +
           validations.size() * sizeof(ValidationRecord) + evaluations.size() * sizeof(io::EvaluationRow) +
           evaluation_samples.size() * sizeof(io::EvaluationSampleRow) +
           evaluation_texts.size() * sizeof(io::EvaluationTextRow) + kernels.size() * sizeof(io::KernelRow) +
           kernel_names.size() * sizeof(io::KernelNameRow) + fp8.size() * sizeof(Fp8Record) +
           step_samples.size() * sizeof(StepSampleRecord);
  }
  bool empty() const { return bytes() == 0 && !dropped; }
  /// Empties the queue but keeps its allocated memory.
  void clear() {
    steps.clear();
    spans.clear();
    memory.clear();
    plan.clear();
    host_plan.clear();
    device.clear();
    driver_memory.clear();
    validations.clear();
    evaluations.clear();
    evaluation_samples.clear();
    evaluation_texts.clear();
    kernels.clear();
    kernel_names.clear();
    fp8.clear();
    step_samples.clear();
    dropped.reset();
  }
  void drop(const std::vector<SpanRecord>& records) {
    if (!dropped) dropped = io::DroppedRow{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 0};
    for (const SpanRecord& record : records) {
      dropped->first_step = std::min(dropped->first_step, record.step);
      dropped->last_step = std::max(dropped->last_step, record.step);
    }
    dropped->spans += static_cast<int64_t>(records.size());
  }
};

}  // namespace blipft
