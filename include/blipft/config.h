// Config: the checked contents of a run file.
//
// Config is composed of the settings of the rooms below: LoadingSettings is part of EngineSettings, that of RunSettings,
// that of Config, so that each room gets a Config as its own settings. Sections and members have the names of the sections
// and keys in the file; keys of `train` that divide samples into steps are in `steps`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "blipft/run_settings.h"

namespace blipft {

/// Scores of generated texts.
struct EvaluateSection {
  std::vector<std::string> metrics;     ///< bleu4, rouge_l, cider, vqa_accuracy, exact_match, ...; empty: those that fit
  int64_t samples = 0;                  ///< the first so many validation samples are answered, and scored, while a run trains;
                                        ///< 0: none
  std::string ignore_before;            ///< scores take the text behind the last one of this, as "</think>"
  int64_t every = 1;                    ///< validations between generations; also at the last one
};

struct Config : RunSettings {
  EvaluateSection evaluate;
  std::vector<std::string> notes;             ///< keys of the file that the command line replaced, for the user to read
};

/// The largest train.batch_size: a dimension of a GPU's grids.
constexpr int64_t kMaxSamplesAtOnce = 65535;

/// Returns true if train.batch_size is auto: the run start then chooses the fastest micro-batch that fits in memory.
inline bool chooses_batch_size(const Config& config) { return config.steps.batch_size == 0; }

/// Samples of a step over all `ranks`. Some micro-batches have empty slots at their ends if train.total_batch_size
/// cannot be divided evenly. `config` is resolved.
inline int64_t samples_of_a_step(const Config& config, int64_t ranks) {
  const StepsSection& steps = config.steps;
  return steps.total_batch_size > 0 ? steps.total_batch_size : steps.batch_size * steps.accumulate_grad_batches * ranks;
}

/// Returns the number of samples of a step that Sampler assigns to rank `rank`.
inline int64_t samples_of_a_rank(const Config& config, int64_t ranks, int64_t rank) {
  const int64_t micro_batches = config.steps.accumulate_grad_batches, all = samples_of_a_step(config, ranks);
  const int64_t larger = all % (micro_batches * ranks);  // micro-batches that have one sample more than the others
  return all / (micro_batches * ranks) * micro_batches + larger / ranks + (rank < larger % ranks);
}

/// Returns true if validations generate texts and score them.
inline bool generates(const Config& config) { return config.evaluate.samples > 0 && validates(config); }


/// The value of every key, in the order of the sections, as YAML: ("train.lr", "1e-05"). `every_key`: as of to_yaml().
std::vector<std::pair<std::string, std::string>> config_values(const Config& config, bool every_key = true);
/// Throws UserError when the run file asks for another number of ranks than mpirun started: parallel.devices differs
/// from `ranks`, or strategy is single with several ranks.
void check_ranks(const Config& config, int64_t ranks);

/// The config of a run on `ranks` ranks: train.accumulate_grad_batches as train.total_batch_size asks for. A batch_size that
/// is auto stays so. Throws UserError when there are fewer samples than ranks, when accumulate_grad_batches is given and is
/// another, and, where the loss depends on who shares a micro-batch, when ranks x train.batch_size does not divide the total:
/// it names the nearest that do.
Config resolve_for_ranks(const Config& config, int64_t ranks);

/// Returns the name of the setting that makes the loss depend on the division into micro-batches, or null.
const char* depends_on_micro_batch(const Config& config);

/// The samples of a step that a rank has at most, of a config with train.total_batch_size.
int64_t share_of_a_step(const Config& config, int64_t ranks);
/// `config`, which has train.total_batch_size, with that share in `micro_batches` micro-batches as equal as can be.
Config with_micro_batches(const Config& config, int64_t ranks, int64_t micro_batches);

/// The parsed command line.
struct CommandLine {
  enum class Action { train, generate, evaluate, export_model, print_config, plan, show, help, recipes, version };  // the first four under MPI; from help on without a run file
  Action action = Action::train;
  std::string config_file;
  std::vector<std::string> overrides;   ///< "section.key=value"
  int64_t plan_ranks = 0;               ///< --plan for this world size; 0: parallel.devices
  int64_t plan_node_ranks = 0;          ///< --plan: ranks of each machine; 0: the number of local GPUs
  std::string checkpoint;               ///< --export: the folder of a checkpoint; then there is no config_file
  double plan_gpu_gib = 0;              ///< --gpu-memory or --fit GiB, for --plan; 0: the GPU here, else an H200's
  bool plan_generation = false;         ///< --plan with --generate or --evaluate: plan it, not a training
  bool plan_evaluation = false;         ///< --plan with --evaluate
  bool plan_fit = false;                ///< --fit, for --plan: settings that fit such a GPU, fastest first
  std::string prompt;                   ///< --prompt TEXT, for --generate: one text instead of a data set
  std::string image;                    ///< --image FILE, for --generate: the picture that goes with it
  std::string system;                   ///< --system TEXT, for --prompt and --chat: the system message
  bool chat = false;                    ///< --chat: answers the lines of standard input
  int64_t show_samples = 0;             ///< --show: number of samples
  bool show_random = false;             ///< --show: random samples, not the first ones
  int64_t smoke_steps = 0;              ///< --smoke: steps of a trial run that leaves nothing behind; 0: a whole run
  std::string help_section;             ///< --help: the section to print; "": all sections
};

/// Throws UserError that names the unknown option and the nearest one.
CommandLine parse_command_line(int argc, const char* const* argv);
/// The text of --help; `section` "": of all sections. Lines have at most 100 characters.
std::string help_text(const std::string& section = "");

/// With train.total_batch_size alone, train.batch_size is auto, and train.accumulate_grad_batches is 0 until
/// resolve_for_ranks().
/// Reads `file`, applies the overrides, ignores keys of the file that conflict with them (with a note each), and checks
/// every key, type and combination. Throws UserError with file, line, key and the nearest valid key. Paths stay as
/// written (relative to the working directory). `ranks` of the run; 0: parallel.devices.
Config load_config(const std::string& file, const std::vector<std::string>& overrides, int64_t ranks = 0);
/// The config of `values`, as config_values() gives them, with the overrides; `file` names them in messages.
Config config_from_values(const std::vector<std::pair<std::string, std::string>>& values, const std::string& file,
                          const std::vector<std::string>& overrides);
/// The full effective configuration as YAML that load_config reads back. Without `every_key` of `generate` those alone that were
/// given: what the model's generation_config.json says holds then, as now.
std::string to_yaml(const Config& config, bool every_key = true);

/// Prints config.notes, each as a line "note: ..." on stderr.
void print_notes(const Config& config);
/// Turns a run into a trial of `steps` steps, whatever its run file says: no checkpoints, no saved model, one batch of
/// validation where it validates. Its output.path stays; make_smoke_folder() gives it another.
void make_smoke(Config& config, int64_t steps);

}  // namespace blipft
