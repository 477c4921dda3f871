// The header of a run; see run_header.h.
#include "train/start/run_header.h"

#include <cmath>
#include <cstdio>

#include "blipft/version.h"
#include "checkpoint/checkpoints.h"
#include "engine/settings.h"
#include "loading/text_survey.h"
#include "weights/own_head.h"

namespace blipft {

namespace {

// Returns the numbers of training and validation samples, and of samples that are not used.
std::string data_text(const Config& config, const RunData& data, const Progress::Run& run) {
  const int64_t trained = data.training.dataset->size();
  const int64_t held_out = config.data.val_split_fraction > 0 ? data.validation.dataset->size() : 0;
  std::string text = concat(counted(trained + held_out, "sample"), " in ", config.data.path);
  if (held_out > 0) text += concat(": ", trained, " for training, ", held_out, " for validation");
  text += concat(", ", counted(run.steps_per_epoch, "step"), " an epoch");
  const int64_t epoch = config.data.num_train_samples > 0 ? config.data.num_train_samples : trained;
  const int64_t left = epoch - run.steps_per_epoch * run.samples_per_step;
  if (left > 0 && config.steps.limit_train_batches == 1)
    text += concat(" (", left, " of its samples fill no step)");
  text += concat(", ", counted(run.total_steps, "step"), " in all");
  if (config.steps.max_epochs < 0)
    text += concat(" (", std::round(10.0 * static_cast<double>(run.total_steps) / static_cast<double>(run.steps_per_epoch)) / 10,
                   " epochs)");
  return text;
}

// Returns how a step's samples are divided into micro-batches. `choice`: the line of train.batch_size: auto, or empty.
std::string batch_text(const Config& config, const std::string& choice, int64_t ranks) {
  if (!choice.empty()) return "auto       " + choice;
  const int64_t micro_batches = config.steps.accumulate_grad_batches;
  return concat("batch      ", counted(config.steps.batch_size, "sample"), " x ", micro_batches, " micro-batch",
                micro_batches == 1 ? "" : "es", " a rank, ", samples_of_a_step(config, ranks), " a step");
}

std::string validation_text(const Config& config, const RunData& data) {
  const int64_t samples = data.validation.dataset->size();
  const std::string texts = data.surveyed() ? survey_text(config, *data.validation.texts) : "";
  return concat(samples, " samples", texts.empty() || texts == concat(samples, " texts") ? "" : concat(": ", texts));
}


void warn_of_settings(const TrainingResources& r, TrainingObserver& observer) {
  const Config& config = r.config();
  const int64_t steps = r.total_steps(), warmup = config.train.warmup_steps;
  if (warmup >= steps && warmup > 0 && !r.run.resume)
    observer.warning(concat(location_of(config, "train.warmup_steps"), ": train.warmup_steps is ", warmup, ", and the run has ",
                            counted(steps, "step"), ": the learning rate never reaches train.lr; lower it, or give ",
                            "train.warmup_ratio in its place"));
  const ModelInputs inputs = r.model().inputs();
  if (!inputs.has_picture() && !inputs.text.pictures && r.data.training.dataset->has_pictures())
    observer.warning(concat("the model has no vision input: it trains on the captions of ", config.data.path,
                            " and ignores the pictures"));
  if (const std::string warning = end_token_warning(config, inputs, r.data); !warning.empty()) observer.warning(warning);
  if (!r.data.surveyed()) return;
  const TextSurvey& texts = *r.data.training.texts;
  if (texts.surveyed() > 0 && texts.cut() == texts.surveyed())
    observer.warning(concat("all ", texts.surveyed(), " texts are cut to ", config.data.max_text_tokens, " tokens (",
                            "data.max_text_tokens); no text is complete"));
}

void print_data(const TrainingResources& r, const Progress::Run& run) {
  const Config& config = r.config();
  std::printf("data       %s\n", data_text(config, r.data, run).c_str());
  if (const std::string keys = r.data.training.dataset->unread_keys(); !keys.empty())
    std::printf("note: keys of the records that are not read: %s\n", keys.c_str());
  if (r.data.surveyed())
    std::printf("texts      %s; %s\n", survey_text(config, *r.data.training.texts).c_str(),
                text_shapes_text(r.plan.memory.text_shapes).c_str());
  if (r.data.validates()) std::printf("validation %s\n", validation_text(config, r.data).c_str());
}

// Prints which checkpoints the run writes, and which one it resumes from.
void print_checkpoints(const TrainingResources& r) {
  const Config& config = r.config();
  const RunIdentity& run = r.run;
  if (writes_checkpoints(config))
    std::printf("checkpoint %s\n", checkpoints_text(config, r.model().units(), r.engine->store, r.world.size(),
                                                    r.world.local_size()).c_str());
  if (!config.output.save_model && !writes_checkpoints(config) && config.smoke_steps == 0)
    std::printf("warning: the trained weights will be discarded: output.save_model is false and no checkpoints are enabled\n");
  if (!run.resume && config.checkpoint.resume == ResumeMode::automatic)
    std::printf("begins     at the first step: %s has no checkpoint\n", r.plan.outputs.checkpoints.c_str());
  if (!run.resume) return;
  const std::string changes = what_may_change_bits(*run.resume, r.facts());
  std::printf("resume     after %lld steps, from %s%s%s\n", static_cast<long long>(run.first_step), run.resume->folder.c_str(),
              changes.empty() ? "" : "; rounding may differ from a run that was never stopped: ", changes.c_str());
  if (!run.changed_keys.empty()) std::printf("changed    %s\n", run.changed_keys.c_str());
}

void print_notes(const TrainingResources& r) {
  const Config& config = r.config();
  const bool on_gpu = r.backend.on_gpu();
  if (config.train.matmul_precision == MatmulPrecision::high && (config.train.precision != Precision::f32_true || !on_gpu))
    std::printf("note       train.matmul_precision high has no effect: only 32-true on GPUs has TF32 products\n");
  if (config.train.matmul == MatmulType::fp8 && !on_gpu)
    std::printf("note       train.matmul fp8 is emulated on CPUs: the results are those of a GPU up to rounding, the speed is not\n");
  if (config.model.init == InitialWeights::pretrained && has_head(r.model().units(), config.model.path) &&
      says_tied(config.model.path))
    std::printf("note       config.json ties the head to the embeddings, but the checkpoint has another weight for it: the "
                "head is trained untied, as transformers loads it\n");
}

}  // namespace

Progress::Run progress_facts(const TrainingResources& resources) {
  Progress::Run run;
  run.total_steps = resources.total_steps();
  run.first_step = resources.run.first_step;
  run.steps_per_epoch = resources.loaders.training->steps_per_epoch();
  run.samples_per_step = samples_of_a_step(resources.config(), resources.world.size());
  run.ranks = resources.world.size();
  run.text_only = !resources.model().inputs().has_picture();
  run.memory_bytes = resources.arena->total_bytes();
  return run;
}

void print_run_header(const TrainingResources& resources, const Progress::Run& run, TrainingObserver& observer) {
  const TrainingResources& r = resources;
  const Device& device = *r.backend.device;
  print_header(r.config(), r.model(),
               concat(r.world.size(), " rank(s), ", strategy_text(r.plan.memory), ", ", r.backend.groups->groups().all->name()),
               concat(device.name(), device.code().empty() ? "" : ", ", device.code()), r.times.text(),
               batch_text(r.config(), r.plan.choice.reason, r.world.size()), header_table(r.plan.memory, r.backend.on_gpu()));
  print_data(r, run);
  print_checkpoints(r);
  for (const std::string& text : {decoding_text(r.plan.memory), fp8_text(r.plan.memory, r.model())})
    if (!text.empty()) std::printf("%s\n", text.c_str());
  warn_of_settings(r, observer);
  print_notes(r);
  std::fflush(stdout);
}

}  // namespace blipft
