// --plan: the memory of a run, without running it.
#include "plan/print_plan.h"

#include <algorithm>
#include <cstdio>

#include "base/memory_text.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/resume.h"
#include "engine/placement.h"
#include "engine/settings.h"
#include "plan/fit/step_time.h"
#include "plan/planned_gpu.h"
#include "plan/planned_texts.h"
#include "plan/training_plan.h"
#include "weights/adapter_files.h"

namespace blipft {

namespace {

// Returns the config that train.batch_size=auto chooses. If nothing fits, returns the nearest one, so that it is
// planned.
Config print_choice(const FitSearch& search, int64_t ranks, int64_t gpu_bytes) {
  const FitResult found = search.choose(ranks, 2);
  if (!found.rows.empty()) {
    std::printf("train.batch_size: auto chooses %s\n", choice_text(found.rows, gpu_bytes).c_str());
    return found.rows.front().config;
  }
  BLIPFT_USER_CHECK(found.nearest, "train.batch_size: auto found no settings that the model takes");
  std::printf("train.batch_size: auto finds none that fit; this comes nearest: %s\n",
              ChosenSettings::of(found.nearest->config).description().c_str());
  return found.nearest->config;
}

// "parameter groups: vision (frozen), language"
std::string parameter_groups_text(const Model& model) {
  std::string text = "parameter groups:";
  for (const ParameterGroup& group : model.groups())
    text += concat(&group == &model.groups().front() ? " " : ", ", group.name, group.trained ? "" : " (frozen)");
  return text;
}

}  // namespace

bool print_plan(const Config& requested, int64_t ranks, int64_t node_ranks, double gpu_gib) {
  const GroupSizes world = planned_groups(requested, ranks, node_ranks);
  Config config = resolve_for_ranks(requested, world.all());
  const bool chooses = chooses_batch_size(config);
  if (chooses) config = before_choice(config, world.all());
  check_resume_folder(config);
  const PlannedGpu planned = planned_gpu(gpu_gib);
  const int64_t gpu = planned.bytes;
  BLIPFT_USER_CHECK(config.train.matmul != MatmulType::fp8 || planned.rates.fp8 > 0, location_of(config, "train.matmul"),
                    ": train.matmul: found fp8, but a ", planned.rates.name,
                    " has no products in fp8: GPUs of compute capability 8.9 and later have; remove it");
  TrainingFacts facts{.ranks = world.all(), .node_ranks = planned_node_ranks(world.all(), node_ranks), .free_bytes = gpu,
                      .model = std::make_shared<const RunModel>(config)};
  const std::unique_ptr<Model> model_of_file = facts.model->make(config);
  check_adapters({config.model, config.adapter, config}, model_of_file->units());
  facts.texts = std::make_shared<const PlannedTexts>(config, model_of_file->inputs(), world.all());
  const PlannedTexts& texts = *facts.texts;
  if (chooses) config = print_choice(FitSearch(requested, node_ranks, gpu, texts, *facts.model, planned.rates), world.all(), gpu);
  const auto shapes_of = [&](const Config& other) { return texts.shapes(other, world.all()); };
  facts.shapes = shapes_of(config);
  const TrainingPlan run = plan_training(config, facts);
  const MemoryPlan& plan = run.memory;
  Model& model = *run.model;
  std::printf("%s\n%s\n%s%s", model.description().c_str(), parameter_groups_text(model).c_str(), texts.text().c_str(),
              plan_table(plan).c_str());
  for (const std::string& text : {decoding_text(plan), fp8_text(plan, model)})
    if (!text.empty()) std::printf("%s\n", text.c_str());
  const int64_t outside = bytes_outside_of_arena(config, world, plan.arena->planned_takes());
  const int64_t total = plan.arena->total_bytes() + outside;
  std::printf("outside of the plan: CUDA context, libraries, NCCL, graphs: about %s\n", memory_text(outside).c_str());
  const std::string checkpoints = checkpoints_text(config, model.units(), plan.engine->store, world.all(),
                                                   node_ranks > 0 ? node_ranks : world.all());
  if (!checkpoints.empty()) std::printf("%s\n", checkpoints.c_str());
  std::printf("GPU: %s (%s)\n", memory_text(gpu).c_str(), planned.which.c_str());
  if (total <= gpu)
    std::printf("fits: %s of %s on each of %lld rank(s), strategy %s\n", memory_text(total).c_str(),
                memory_text(gpu).c_str(), static_cast<long long>(world.all()), strategy_text(plan).c_str());
  else {
    std::printf("does not fit: needs %s, the GPU has %s\n", memory_text(total).c_str(), memory_text(gpu).c_str());
    if (const std::string text = max_pixels_text(config, model, world, gpu); !text.empty()) std::printf("%s\n", text.c_str());
  }
  const StepTime time =
      estimate_step_time(config, model, world, plan.sharded.hold, texts.mean(config, world.all()), planned.rates);
  std::printf("a step takes about %s;\n  %s\n", step_time_text(time).c_str(), rates_text(config, planned.rates).c_str());
  const int64_t samples = texts.samples_of_epoch() / world.all();  // 0: unknown
  const int64_t maximum = samples > 0 ? std::min(samples, kMaxSamplesAtOnce) : kMaxSamplesAtOnce;
  const int64_t largest = largest_batch(config, model, world, gpu, shapes_of, maximum, texts.evaluation());
  if (largest > 0)
    std::printf("largest train.batch_size that fits (accumulate_grad_batches 1): %lld%s\n", static_cast<long long>(largest),
                largest == samples ? ", all samples of an epoch" : "");
  else
    std::printf("no train.batch_size fits, not even 1\n");
  if (!wants_cuda(config) && cuts_parameters(plan.strategy)) {  // only these plans depend on the GPU's size
    facts.free_bytes = 0;
    const TrainingPlan here = plan_training(config, facts);
    std::printf("on this machine a run computes on CPUs: there it takes %s a rank, strategy %s\n",
                memory_text(here.memory.arena->total_bytes()).c_str(), strategy_text(here.memory).c_str());
  }
  return total <= gpu;
}

}  // namespace blipft
