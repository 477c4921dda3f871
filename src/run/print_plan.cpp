// --plan: the memory of a run, without running it.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "blipft/trainer.h"
#include "data/text_survey.h"
#include "memory/memory_plan.h"
#include "memory/memory_text.h"
#include "run/checkpoints.h"
#include "run/placement.h"
#include "run/run_data.h"

namespace blipft {

namespace {

struct PlannedGpu {
  int64_t bytes;
  std::string which;
};

// The GPU that a plan is for: the one asked for, else the one that is there, else an H200.
PlannedGpu planned_gpu(double gib) {
  if (gib > 0) return {static_cast<int64_t>(gib * (int64_t{1} << 30)), "--gpu-memory"};
  if (cuda_device_count() > 0) {
    const std::unique_ptr<Device> device = make_cuda_device(0);
    return {device->memory().total, device->name()};
  }
  return {int64_t{143771} << 20, "an H200, taken because no GPU is here; --gpu-memory GiB names another size"};
}

// The groups that a plan is for: without --node-ranks a machine has as many ranks as GPUs are here.
GroupSizes planned_groups(const Config& config, int64_t ranks, int64_t node_ranks) {
  const int64_t world = ranks > 0 ? ranks : std::max<int64_t>(1, config.parallel.devices);
  if (node_ranks == 0) node_ranks = std::min<int64_t>(world, cuda_device_count());
  BLIPFT_USER_CHECK(node_ranks > 0 || config.parallel.shard_ranks != "node", place_of(config, "parallel.shard_ranks"),
                    ": parallel.shard_ranks: is node, and no GPU is here that would tell how many ranks a machine has; "
                    "add --node-ranks N");
  return group_sizes(config, world, node_ranks);
}

// "parameter groups: vision (frozen), language"
std::string parameter_groups_text(const Model& model) {
  std::string text = "parameter groups:";
  for (const ParameterGroup& group : model.groups())
    text += concat(&group == &model.groups().front() ? " " : ", ", group.name, group.trained ? "" : " (frozen)");
  return text;
}

// The text shapes that a plan is for. Where the model reads no pictures, they follow from the texts, if these are here.
struct PlannedTexts {
  TextShapesOf shapes_of;
  std::string text;                        // lines of the plan, or nothing
};

PlannedTexts planned_texts(const Config& config, const ModelInputs& inputs, int64_t world) {
  if (inputs.has_picture()) return {possible_text_shapes, ""};
  try {
    const auto data = std::make_shared<RunData>(
        open_run_data(config, inputs, world, std::max<int64_t>(1, std::thread::hardware_concurrency())));
    const auto shapes_of = [data, world](const Config& other) {
      try {
        return text_shapes_of(other, world, *data);
      } catch (const UserError&) {         // not one step of so many samples: what they may take at most
        return std::vector<TextShape>{possible_text_shapes(other).back()};
      }
    };
    return {shapes_of, concat(survey_text(config, *data->training.texts), "\n",
                              text_shapes_text(data->text_shapes), "\n")};
  } catch (const UserError& error) {
    return {possible_text_shapes, concat("assumed: texts of up to ", config.data.max_text_tokens,
                                         " tokens (data.max_text_tokens); the data's own were not seen: ",
                                         error.what(), "\n")};
  }
}

}  // namespace

bool print_plan(const Config& asked, int64_t ranks, int64_t node_ranks, double gpu_gib) {
  const GroupSizes world = planned_groups(asked, ranks, node_ranks);
  const Config config = resolve_for_ranks(asked, world.all());
  const PlannedGpu planned = planned_gpu(gpu_gib);
  const int64_t gpu = planned.bytes;
  const std::unique_ptr<Model> model = make_model(config);
  const PlannedTexts texts = planned_texts(config, model->inputs(), world.all());
  const MemoryPlan plan = plan_memory(config, *model, world, gpu, texts.shapes_of(config));
  std::printf("%s\n%s\n%s%s", model->description().c_str(), parameter_groups_text(*model).c_str(), texts.text.c_str(),
              plan_table(plan).c_str());
  const int64_t outside = bytes_outside_of_arena(world), total = plan.arena->total_bytes() + outside;
  std::printf("outside of the plan: CUDA context, libraries, NCCL: about %s\n", memory_text(outside).c_str());
  const std::string checkpoints = checkpoints_text(config, model->units(), plan.engine->store, world.all(), world.all());
  if (!checkpoints.empty()) std::printf("%s\n", checkpoints.c_str());
  std::printf("GPU: %s (%s)\n", memory_text(gpu).c_str(), planned.which.c_str());
  if (total <= gpu)
    std::printf("fits: %s of %s on each of %lld rank(s), strategy %s\n", memory_text(total).c_str(),
                memory_text(gpu).c_str(), static_cast<long long>(world.all()), strategy_text(plan).c_str());
  else
    std::printf("does not fit: needs %s, the GPU has %s\n", memory_text(total).c_str(), memory_text(gpu).c_str());
  std::printf("largest train.batch_size that fits (accumulate_grad_batches 1): %lld\n",
              static_cast<long long>(largest_batch(config, model_settings(config), world, gpu, texts.shapes_of)));
  if (!wants_cuda(config) && plan.strategy_name == "fsdp") {  // the only strategy that plans by the GPU's size
    const MemoryPlan here = plan_memory(config, *model, world, 0, plan.text_shapes);
    std::printf("on this machine a run computes on CPUs: there it takes %s a rank, strategy %s\n",
                memory_text(here.arena->total_bytes()).c_str(), strategy_text(here).c_str());
  }
  return total <= gpu;
}

}  // namespace blipft
