// Config: what a run file says, checked. Sections and leaf names are those of the YAML file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace blipft {

enum class Precision { f32_true, bf16_true, bf16_mixed };  // "32-true", "bf16-true", "bf16-mixed"

struct ModelSection {
  std::string path;                     ///< directory with config.json (and weights, tokenizer, preprocessor files)
  std::string init = "pretrained";      ///< pretrained | random
  std::vector<std::string> freeze;      ///< parameter groups of the model that are not trained
  std::string quantize = "none";        ///< none | nf4 | int8: how weights of frozen layers are held
};

struct DataSection {
  std::string path;                     ///< ImageFolder directory, or a .tar / directory of .tar shards (WebDataset)
  std::string format = "auto";          ///< auto | imagefolder | webdataset
  int64_t num_train_samples = 0;        ///< use the first n samples; 0: all. More than there are: the set repeats.
  bool exif_orientation = true;         ///< turn pictures as their EXIF says
  std::string transparency = "white";   ///< white (what is transparent lies on white) | drop (as if it were opaque)
  int64_t max_text_tokens = 50;         ///< longer captions are truncated
  std::string text_padding = "auto";    ///< auto (packed where the loss is the same) | packed (next to none) | longest
                                        ///< (of a step, rounded up to 8) | max (always max_text_tokens)
  int64_t num_workers = 4;              ///< decoding and tokenizing threads of each rank
  int64_t prefetch_steps = 3;           ///< steps prepared ahead
  bool shuffle = true;
};

struct TrainSection {
  double lr = 1e-5;
  std::string lr_schedule = "constant"; ///< constant | linear | cosine
  int64_t warmup_steps = 0;             ///< n: step s < n learns at lr * s / n
  int64_t batch_size = 16;              ///< samples of one micro-batch of one rank
  int64_t accumulate_grad_batches = 1;
  Precision precision = Precision::bf16_true;
  std::string optim = "adamw";          ///< adamw | adamw8bit | lion | sgd
  bool stochastic_rounding = false;     ///< bf16-true: updates round weights up or down at random, exact in the mean
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01, momentum = 0;
  double gradient_clip_val = 0;         ///< 0: no clipping
  std::string act_ckpt = "none";        ///< none | half | full: which layers recompute their forward in backward
  int64_t max_epochs = 1;
  int64_t max_steps = -1;               ///< -1: as the epochs say
  double limit_train_batches = 1.0;     ///< <= 1: a fraction of an epoch's steps; > 1: that many steps
  int64_t seed = 0;
  bool loss_on_padding = false;         ///< train on padding as the tutorial does
  std::string loss_normalization = "tokens";  ///< tokens (of the whole step) | micro_batch (mean of micro-batch means)
  bool dropout = true;                  ///< false: all dropout probabilities are 0
};

struct ParallelSection {
  std::string device = "auto";          ///< auto | cpu | cuda
  int64_t devices = 0;                  ///< ranks; 0: as many as mpirun started
  std::string strategy = "auto";        ///< auto | single | ddp | fsdp (auto: single on one rank, else ddp)
  std::string shard_ranks = "all";      ///< fsdp: ranks that share the parameters: all | node (of a machine) | a number
  std::string reshard = "auto";         ///< fsdp: always | step | auto
  int64_t prefetch_bytes = 0;           ///< fsdp: parameters gathered ahead of use; 0: chosen from the memory plan
  bool direct_gathers = true;           ///< fsdp: gather by copies between GPUs, where they reach each other
  bool direct_reductions = true;        ///< sum gradients by a kernel that reads the other GPUs' memory
  int64_t nccl_max_ctas = 0;            ///< thread blocks a collective may occupy; 0: 32
  std::string gemm_search = "quick";    ///< quick | thorough: timing of matrix products not seen before on this machine
  bool cuda_graph = true;
  int64_t threads = 0;                  ///< CPU threads of a rank's ops; 0: cores / ranks on this machine
};

struct TraceSection {
  bool enabled = true;
  std::string spans = "units";          ///< none | units
  std::vector<int64_t> kernels;         ///< steps whose every kernel is recorded
  double sample_seconds = 0.2;          ///< GPU utilisation, power, clocks
};

struct OutputSection {
  std::string path = "runs/run";        ///< directory of this run: traces, saved model
  bool save_model = false;              ///< write model/ in Hugging Face form at the end
  std::string save = "all";             ///< all | trained: the trained tensors alone
  std::string save_dtype = "auto";      ///< auto (trained: the dtype of the master weights; frozen: as stored,
                                        ///< bit for bit) | f32 | bf16 (all tensors)
  int64_t memory_every = 50;            ///< steps between the memory lines; also at steps 0 and 1
  double progress_seconds = 2;          ///< between progress lines when not on a terminal
};

struct Config {
  ModelSection model;
  DataSection data;
  TrainSection train;
  ParallelSection parallel;
  TraceSection trace;
  OutputSection output;

  std::string file;                           ///< the run file, as given
  std::map<std::string, std::string> places;  ///< "section.key" -> where it was set: "file:line" or override "..."
};

/// Where `key` ("parallel.devices") was set, for error messages: "inputs/fsdp.yaml:12", override "parallel.devices=2",
/// or "inputs/fsdp.yaml" for a key that has its default value.
std::string place_of(const Config& config, const std::string& key);

/// Throws UserError when the run file asks for another number of ranks than mpirun started: parallel.devices differs
/// from `ranks`, or strategy single is asked for with several ranks.
void check_ranks(const Config& config, int64_t ranks);

/// The ranks of a shard group, by parallel.shard_ranks, of `ranks` ranks in all; they divide them. `node_ranks`: of each
/// machine, 0: machines have different numbers of ranks. Throws UserError that names the nearest divisors.
int64_t shard_group_size(const Config& config, int64_t ranks, int64_t node_ranks);

/// Throws UserError, with file and line and the nearest name, when model.freeze holds a name that is none of `groups`,
/// those of the model's parameters, or when it holds all of them.
void check_freeze(const Config& config, const std::vector<std::string>& groups);

/// What the command line asks for.
struct CommandLine {
  enum class Action { train, print_config, plan, help, version };
  Action action = Action::train;
  std::string config_file;
  std::vector<std::string> overrides;   ///< "section.key=value"
  int64_t plan_ranks = 0;               ///< --plan for this world size; 0: parallel.devices
  int64_t plan_node_ranks = 0;          ///< --plan for so many ranks of a machine; 0: as many as GPUs are here
  double plan_gpu_gib = 0;              ///< --gpu-memory GiB, for --plan; 0: the GPU that is there, else an H200's
};

/// Throws UserError that names the unknown option and the nearest one.
CommandLine parse_command_line(int argc, const char* const* argv);
std::string help_text();

/// Reads `file`, applies the overrides, checks every key, type and combination. Throws UserError with file, line, key
/// and the nearest valid key. Paths stay as written (relative to the working directory).
Config load_config(const std::string& file, const std::vector<std::string>& overrides);
/// The full effective configuration as YAML that load_config reads back.
std::string to_yaml(const Config& config);

std::string precision_name(Precision precision);

}  // namespace blipft
