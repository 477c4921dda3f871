// TrainingResources: everything that a training run owns, in order of creation; destroyed in reverse order.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agreement/output_folder.h"
#include "base/start_times.h"
#include "blipft/checkpoint.h"
#include "blipft/loading.h"
#include "blipft/monitor.h"
#include "checkpoint/content_check.h"
#include "checkpoint/resume.h"
#include "engine/engine.h"
#include "engine/run_data.h"
#include "generate/validation_answers.h"
#include "plan/training_plan.h"
#include "weights/weights.h"

namespace blipft {

/// The id of a run, the folder that it writes to, and the checkpoint that it resumes from.
struct RunIdentity {
  std::unique_ptr<OutputFolder> folder;
  std::unique_ptr<ResumePoint> resume;     ///< null if the run begins at its first step
  std::string id;
  int64_t first_step = 0;
  std::string changed_keys;                ///< keys with another value than before the resume; empty: none
  Facts inputs;                            ///< facts about the inputs; only on rank 0
};

/// The device of a rank, its monitor and the operations on it.
struct Backend {
  std::unique_ptr<DeviceMonitor> monitor;
  std::unique_ptr<Device> device;
  std::unique_ptr<KernelTracer> kernels;   ///< null unless trace.kernels names steps
  int64_t context_bytes = 0;               ///< memory of the device before communicators and the arena
  std::string gemm_table;                  ///< file with the selected algorithms of matrix products, on GPUs
  std::unique_ptr<Ops> ops;
  std::unique_ptr<CommGroups> groups;
  std::unique_ptr<Optimizer> optimizer;
  SpanRecorder spans;
  bool on_gpu() const { return device->kind() == DeviceKind::cuda; }
};

/// The sources of the weights, and the comparison of the data that all ranks have read.
struct WeightSources {
  std::shared_ptr<const SafetensorsReader> adapters;    ///< adapters that the run began with, or null
  std::shared_ptr<const SafetensorsReader> checkpoint;  ///< kept if the run saves frozen weights
  std::unique_ptr<ContentCheck> contents;
};

struct Loaders {
  std::unique_ptr<DataLoader> training, validation;  ///< validation: null if the run does not validate
};

struct TrainingResources {
  TrainingResources(const Config& config, const World& of) : world(of), plan{.config = config} {}
  TrainingResources(const TrainingResources&) = delete;
  TrainingResources& operator=(const TrainingResources&) = delete;

  const World& world;
  StartTimes times;
  TrainingPlan plan;                       ///< before it is made, it has the run file's config
  RunIdentity run;
  RunData data;
  std::shared_ptr<ValidationPrompts> prompts;  ///< null: validations generate nothing
  Backend backend;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Engine> engine;
  WeightSources sources;
  Loaders loaders;
  std::unique_ptr<ValidationAnswers> answers;  ///< null: validations generate nothing

  const Config& config() const { return plan.config; }
  const Model& model() const { return *plan.model; }
  bool first_rank() const { return world.rank() == 0; }
  bool records_spans() const { return config().trace.enabled && config().trace.spans != SpanTracing::none; }
  int64_t total_steps() const { return loaders.training->total_steps(); }
  WeightContext weight_context() const;
  /// Returns the circumstances of the run that a checkpoint stores, for the comparison at a resume.
  std::map<std::string, std::string> facts() const;
};

}  // namespace blipft
