// Config: the checked contents of a run file. Sections and members have the names of the sections and keys in the file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "blipft/choices.h"
#include "blipft/key_places.h"

namespace blipft {

struct ModelSection {
  std::string path;                     ///< directory with config.json (and weights, tokenizer, preprocessor files)
  InitialWeights init = InitialWeights::pretrained;  ///< source of the first weights
  std::vector<std::string> freeze;      ///< parameter groups of the model that are not trained
  WeightQuantization quantize = WeightQuantization::none;  ///< how weights of frozen layers are stored
  bool double_quantize = false;         ///< the scales of the quantized weights are quantized too
  std::vector<std::string> quantize_groups;  ///< parameter groups to quantize; empty: all frozen groups
};

/// Low-rank adapters that are trained instead of the model (LoRA, Hu et al. 2021).
struct AdapterSection {
  AdapterKind kind = AdapterKind::none;
  int64_t r = 8;                        ///< rank
  double alpha = 8;                     ///< the adapters' product is scaled by alpha / r
  bool rslora = false;                  ///< alpha / sqrt(r) instead (Kalajdzievski 2023)
  double dropout = 0;                   ///< of the adapters' input
  std::vector<std::string> targets = {"q", "v"};  ///< q, k, v, o, mlp, head, or ends of the modules' names
  AdapterDtype dtype = AdapterDtype::f32;  ///< of weights and optimizer states
  std::string path;                     ///< PEFT folder to go on from; empty: new adapters
};

struct DataSection {
  std::string path;                     ///< ImageFolder directory or COCO captions (.json), or a .tar / directory of .tar
                                        ///< shards (WebDataset), or a .json / .jsonl / .csv file / directory of them
  std::string val_path;                 ///< validation samples, in the same format; empty: none
  double val_split_fraction = 0;        ///< share of the samples at `path` that are kept for validation
  DatasetFormat format = DatasetFormat::automatic;
  int64_t num_train_samples = 0;        ///< use the first n samples; 0: all. More than there are: the set repeats.
  std::map<std::string, std::string> keys;  ///< what the records call the keys that this program knows: prompt: question
  std::string pictures;                 ///< folder that the names of pictures in metadata are relative to; empty: looked
                                        ///< for beside the metadata
  bool allow_outside = false;           ///< an ImageFolder's pictures may lie outside of its folder
  bool exif_orientation = true;         ///< turn pictures as their EXIF says
  Transparency transparency = Transparency::white;  ///< of pictures with an alpha channel
  int64_t max_text_tokens = 50;         ///< longer texts are cut; usual_text_tokens() where not given. A
                                        ///< run file may call it max_seq_length
  ChoiceOrText<PromptStyle> prompt_style = PromptStyle::alpaca;  ///< or a text with {instruction} in it
  /// Template that formats chat messages: auto (the template of the model) or the name of a template.
  ChoiceOrText<TemplateChoice> chat_template = TemplateChoice::automatic;
  TrainOn train_on = TrainOn::all;      ///< which answers of a conversation are trained
  std::string chat_date = "2024-07-26"; ///< what templates with a date in them call today: YYYY-MM-DD
  std::string prompt_template;          ///< of pictures: what stands before a caption, or a text with {} for the prompt
  AnswerSelection answers = AnswerSelection::draw;  ///< how several answers to a prompt are used
  bool mask_prompt = false;             ///< true: only answers are training targets, not prompts
  AutoSwitch append_eos = AutoSwitch::automatic;  ///< end token after a text; auto: after answers
  TextPadding text_padding = TextPadding::automatic;  ///< auto: packed, or longest with loss_on_padding
  int64_t num_workers = 4;              ///< decoding and tokenizing threads of each rank
  int64_t prefetch_steps = 3;           ///< steps prepared ahead
  bool shuffle = true;
  FaultAction on_bad_sample = FaultAction::stop;  ///< a sample that cannot be read, decoded or tokenized
};

struct TrainSection {
  double lr = 1e-5;
  LearningRateCurve lr_schedule = LearningRateCurve::constant;
  int64_t warmup_steps = 0;             ///< n: step s < n learns at lr * s / n
  double warmup_ratio = 0;              ///< warmup_steps as a share of all steps, rounded up; 0: as warmup_steps says
  int64_t batch_size = 16;              ///< samples of one micro-batch of one rank, at most; 0 (auto): chosen when the run
                                        ///< starts; load_config(): so where total_batch_size alone is given
  int64_t accumulate_grad_batches = 1;  ///< micro-batches of a step; 0: as total_batch_size says, see resolve_for_ranks
  int64_t total_batch_size = 0;         ///< samples of a step over all ranks; 0: as the others say
  Precision precision = Precision::bf16_true;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;  ///< of 32-true on GPUs
  MatmulType matmul = MatmulType::precision;  ///< factors of layers' products
  std::vector<std::string> matmul_exclude;   ///< ends of names of modules whose products stay as precision says
  Fp8GradientType fp8_gradients = Fp8GradientType::e4m3;  ///< of layers' outputs
  int64_t fp8_least_size = 1000;        ///< layers with in * out / (in + out) below it stay as precision says
  Fp8Retention fp8_keep_weights = Fp8Retention::automatic;  ///< 8-bit weights kept for a step; auto: as memory allows
  /// 8-bit layer inputs kept for backward; auto: as memory allows.
  Fp8Retention fp8_keep_inputs = Fp8Retention::automatic;
  std::string optim = "adamw";          ///< adamw | adamw8bit | lion | sgd
  bool stochastic_rounding = false;     ///< bf16-true: updates round weights up or down at random, exact in the mean
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01, momentum = 0;
  bool decay_norms_and_biases = true;   ///< as torch.optim.AdamW does; false: weight_decay spares them, as transformers' Trainer does
  double gradient_clip_val = 0;         ///< 0: no clipping
  FaultAction on_nonfinite = FaultAction::stop;  ///< a step whose loss or gradient norm is not finite
  LayerCheckpointing act_ckpt = LayerCheckpointing::none;  ///< layers that recompute their forward in backward
  int64_t max_epochs = 1;               ///< -1: no limit; load_config() sets it where max_steps alone is given
  int64_t max_steps = -1;               ///< -1: no limit
  double limit_train_batches = 1.0;     ///< <= 1: a fraction of an epoch's steps; > 1: that many steps
  int64_t val_check_interval = 0;       ///< steps between validations; one more at the end; 0: every epoch
  double limit_val_batches = 1.0;       ///< <= 1: a fraction of a validation's batches; > 1: that many
  int64_t early_stopping_patience = 0;  ///< validations without improvement that end the run; 0: never
  int64_t seed = 0;
  bool loss_on_padding = false;         ///< train on padding as the tutorial does
  LossNormalization loss_normalization = LossNormalization::tokens;  ///< mean over tokens, or over micro-batches
  bool dropout = true;                  ///< false: all dropout probabilities are 0
};

struct ParallelSection {
  DeviceChoice device = DeviceChoice::automatic;
  int64_t devices = 0;                  ///< ranks; 0: as many as mpirun started
  StrategyKind strategy = StrategyKind::automatic;  ///< auto: single on one rank, ddp on several
  ChoiceOrText<ShardGroup> shard_ranks = ShardGroup::all;  ///< fsdp: ranks that share parameters
  ReshardPolicy reshard = ReshardPolicy::automatic;  ///< of fsdp
  std::vector<OffloadedData> offload;   ///< data in page-locked host memory
  int64_t prefetch_bytes = 0;           ///< fsdp: parameters gathered ahead of use; 0: chosen from the memory plan
  bool direct_gathers = true;           ///< fsdp: gather by copies between GPUs, where they reach each other
  bool direct_reductions = true;        ///< sum gradients by a kernel that reads the other GPUs' memory
  int64_t nccl_max_ctas = 0;            ///< thread blocks a collective may occupy; 0: 32
  GemmSearchTime gemm_search = GemmSearchTime::quick;  ///< time spent on timing matrix products
  bool cuda_graph = true;
  int64_t threads = 0;                  ///< CPU threads of a rank's ops; 0: cores / ranks on this machine
  double timeout_seconds = 60;          ///< the run ends if a rank is silent, or no rank progresses, for this time
};

/// Checkpoints to go on from: trained parameters, optimizer states, place in the data.
struct CheckpointSection {
  int64_t every_steps = 0;              ///< 0: not by steps
  double every_minutes = 0;             ///< 0: not by time
  int64_t keep = 2;                     ///< number of newest checkpoints to keep
  /// Also keep the checkpoint with the best loss or metric.
  ChoiceOrText<BestCriterion> keep_best = BestCriterion::none;
  std::string path;                     ///< their folder; empty: checkpoints/ under output.path
  ChoiceOrText<ResumeMode> resume = ResumeMode::never;  ///< auto: from the newest whole checkpoint, or a path
  ChoiceOrText<TimeLimit> time_limit = TimeLimit::none;  ///< minutes or a Slurm time; a checkpoint is written before it
  double host_gib = 0;                  ///< page-locked host memory of a rank for what is being written; 0: as much as a
                                        ///< checkpoint takes, but at most a quarter of the rank's share of the machine
};

struct TraceSection {
  bool enabled = true;
  SpanTracing spans = SpanTracing::units;
  std::vector<int64_t> kernels;         ///< steps whose every kernel is recorded
  int64_t fp8_every = 0;                ///< steps between those whose factors of products in fp8 are told of; 0: none
  bool samples = false;                 ///< /step_samples: which samples each step trained on
  double sample_seconds = 0.2;          ///< GPU utilisation, power, clocks
  TraceErrorAction on_error = TraceErrorAction::warn;  ///< when the trace cannot be written
};

struct OutputSection {
  std::string path = "runs/run";        ///< directory of this run: traces, saved model
  bool overwrite = false;               ///< a directory that holds another run's results is taken, these are replaced
  bool save_model = false;              ///< write model/ in Hugging Face form at the end
  bool save_best = false;               ///< of the best checkpoint (checkpoint.keep_best) in place of the last step's weights
  SavedTensors save = SavedTensors::all;
  bool save_merged = false;             ///< with adapters: write model/ too, with the adapters merged into its weights
  SavedDtype save_dtype = SavedDtype::automatic;  ///< auto: trained as master weights, frozen as stored
  int64_t memory_every = 50;            ///< steps between the memory lines; also at steps 0 and 1
  double progress_seconds = 2;          ///< between progress lines when not on a terminal
};

/// How --generate and --evaluate generate texts. Missing keys follow the model's generation_config.json.
struct GenerateSection {
  std::string path;                     ///< samples whose prompts are answered; empty: data.val_path, else data.path
  int64_t samples = 0;                  ///< number of samples to use, from the first on; 0: all
  ChoiceOrText<WeightsChoice> weights = WeightsChoice::automatic;  ///< auto (saved by the run, else the base) or a path
  std::string prompt;                   ///< of --prompt, or before each picture's caption
  int64_t max_new_tokens = 64;          ///< not of generation_config.json, where it is most often an old default
  int64_t min_new_tokens = 0;
  AutoSwitch do_sample = AutoSwitch::automatic;  ///< off: greedy, or beams
  double temperature = 1, top_p = 1, min_p = 0;
  int64_t top_k = 50;                   ///< 0: all
  double repetition_penalty = 1;
  int64_t num_beams = 1, num_return_sequences = 1;
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::no;  ///< of beam search
  std::vector<std::string> stop;        ///< texts at which an answer ends; they are left out of it
  int64_t batch_size = 0;               ///< texts generated in parallel on each rank; 0: chosen from the free memory
};

/// Scores of generated texts.
struct EvaluateSection {
  std::vector<std::string> metrics;     ///< bleu4, rouge_l, cider, vqa_accuracy, exact_match, ...; empty: those that fit
  int64_t samples = 0;                  ///< the first so many validation samples are answered, and scored, while a run trains;
                                        ///< 0: none
  int64_t every = 1;                    ///< validations between generations; also at the last one
};

struct Config : KeyPlaces {
  ModelSection model;
  AdapterSection adapter;
  DataSection data;
  TrainSection train;
  ParallelSection parallel;
  CheckpointSection checkpoint;
  GenerateSection generate;
  EvaluateSection evaluate;
  TraceSection trace;
  OutputSection output;

  std::vector<std::string> notes;             ///< keys of the file that the command line replaced, for the user to read
  int64_t smoke_steps = 0;                    ///< > 0: number of steps of a trial run, see make_smoke()
};

/// The largest train.batch_size: a dimension of a GPU's grids.
constexpr int64_t kMaxSamplesAtOnce = 65535;

/// Returns true if train.batch_size is auto: the run start then chooses the fastest micro-batch that fits in memory.
inline bool chooses_batch_size(const Config& config) { return config.train.batch_size == 0; }

/// Samples of a step over all `ranks`. Some micro-batches have empty slots at their ends if train.total_batch_size
/// cannot be divided evenly. `config` is resolved.
inline int64_t samples_of_a_step(const Config& config, int64_t ranks) {
  const TrainSection& train = config.train;
  return train.total_batch_size > 0 ? train.total_batch_size : train.batch_size * train.accumulate_grad_batches * ranks;
}

/// Returns the number of samples of a step that Sampler assigns to rank `rank`.
inline int64_t samples_of_a_rank(const Config& config, int64_t ranks, int64_t rank) {
  const int64_t micro_batches = config.train.accumulate_grad_batches, all = samples_of_a_step(config, ranks);
  const int64_t larger = all % (micro_batches * ranks);  // micro-batches that have one sample more than the others
  return all / (micro_batches * ranks) * micro_batches + larger / ranks + (rank < larger % ranks);
}

/// Returns true if parallel.offload lists `what`.
inline bool offloads(const Config& config, OffloadedData what) {
  const std::vector<OffloadedData>& all = config.parallel.offload;
  return std::find(all.begin(), all.end(), what) != all.end();
}

/// Returns true if the run validates: data.val_path or data.val_split_fraction is given.
inline bool validates(const Config& config) {
  return !config.data.val_path.empty() || config.data.val_split_fraction > 0;
}

/// Returns true if validations generate texts and score them.
inline bool generates(const Config& config) { return config.evaluate.samples > 0 && validates(config); }

/// Returns true if the run writes checkpoints during training, and not only when it receives a request to stop.
inline bool writes_checkpoints(const Config& config) {
  const CheckpointSection& checkpoint = config.checkpoint;
  return checkpoint.every_steps > 0 || checkpoint.every_minutes > 0 || checkpoint.keep_best != BestCriterion::none;
}
/// The folder of the run's checkpoints.
std::string checkpoints_folder(const Config& config);
/// checkpoint.time_limit; 0: none. Throws UserError when the text is no time.
double time_limit_seconds(const Config& config);

/// The value of every key, in the order of the sections, as YAML: ("train.lr", "1e-05"). `every_key`: as of to_yaml().
std::vector<std::pair<std::string, std::string>> config_values(const Config& config, bool every_key = true);
/// Returns the norm that gradients are scaled down to. Infinity: gradients are not scaled, but all are kept until their
/// norm is known so that a step can be skipped. 0: neither; each gradient is consumed as soon as it is final.
inline double largest_norm(const TrainSection& train) {
  if (train.gradient_clip_val > 0) return train.gradient_clip_val;
  return train.on_nonfinite == FaultAction::skip ? std::numeric_limits<double>::infinity() : 0;
}

/// Throws UserError when the run file asks for another number of ranks than mpirun started: parallel.devices differs
/// from `ranks`, or strategy single is asked for with several ranks.
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

/// The ranks of a shard group, by parallel.shard_ranks, of `ranks` ranks in all; they divide them. `node_ranks`: of each
/// machine, 0: machines have different numbers of ranks. Throws UserError that names the nearest divisors.
int64_t shard_group_size(const Config& config, int64_t ranks, int64_t node_ranks);

/// Throws UserError, with file and line and the nearest name, when model.freeze holds a name that is none of `groups`,
/// those of the model's parameters, or when it holds all of them.
void check_freeze(const Config& config, const std::vector<std::string>& groups);

/// The parsed command line.
struct CommandLine {
  enum class Action { train, generate, evaluate, export_model, print_config, plan, help, recipes, version };  // the first four under MPI; from help on without a run file
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
