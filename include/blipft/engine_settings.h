// EngineSettings: what a run computes, and where.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "blipft/decode_ops.h"
#include "blipft/loading.h"
#include "blipft/model.h"
#include "blipft/optimizer.h"
#include "blipft/strategy.h"
#include "blipft/trace.h"
#include "blipft/weight_settings.h"

namespace blipft {

/// train.precision
enum class Precision { f32_true, bf16_true, bf16_mixed };
BLIPFT_CHOICE_WORDS(Precision, "32-true", "bf16-true", "bf16-mixed");
/// train.matmul_precision: f32 or TF32 products on GPUs with precision 32-true.
enum class MatmulPrecision { highest, high };
BLIPFT_CHOICE_WORDS(MatmulPrecision, "highest", "high");
/// train.matmul: the type of the factors of layers' products.
enum class MatmulType { precision, fp8 };
BLIPFT_CHOICE_WORDS(MatmulType, "default", "fp8");
/// train.fp8_gradients: the 8-bit float of output gradients.
enum class Fp8GradientType { e4m3, e5m2 };
BLIPFT_CHOICE_WORDS(Fp8GradientType, "e4m3", "e5m2");
/// train.fp8_keep_weights, train.fp8_keep_inputs: which 8-bit copies are kept for later use in the same step.
enum class Fp8Retention { automatic, all, none };
BLIPFT_CHOICE_WORDS(Fp8Retention, "auto", "all", "none");
/// parallel.device
enum class DeviceChoice { automatic, cpu, cuda };
BLIPFT_CHOICE_WORDS(DeviceChoice, "auto", "cpu", "cuda");
/// parallel.offload: what lies in page-locked host memory. The optimizer has states and master weights; activations are
/// the inputs of checkpointed layers.
enum class OffloadedData { optimizer, parameters, activations };
BLIPFT_CHOICE_WORDS(OffloadedData, "optimizer", "parameters", "activations");
/// parallel.shard_ranks, unless it is a number.
enum class ShardGroup { all, node };
BLIPFT_CHOICE_WORDS(ShardGroup, "all", "node");
/// parallel.gemm_search
enum class GemmSearchTime { quick, thorough };
BLIPFT_CHOICE_WORDS(GemmSearchTime, "quick", "thorough");
/// generate.weights, unless it is the path of a model, an adapter or a checkpoint.
enum class WeightsChoice { automatic, base };
BLIPFT_CHOICE_WORDS(WeightsChoice, "auto", "base");

/// The other keys of train; StepsSection has those that divide samples into steps.
struct TrainSection : LearningRateSettings, OptimizerSettings {
  Precision precision = Precision::bf16_true;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;  ///< of 32-true on GPUs
  MatmulType matmul = MatmulType::precision;  ///< factors of layers' products
  std::vector<std::string> matmul_exclude;   ///< ends of names of modules whose products stay as precision says
  Fp8GradientType fp8_gradients = Fp8GradientType::e4m3;  ///< of layers' outputs
  int64_t fp8_least_size = 1000;        ///< layers with in * out / (in + out) below it stay as precision says
  Fp8Retention fp8_keep_weights = Fp8Retention::automatic;  ///< 8-bit weights kept for a step; auto: as memory allows
  /// 8-bit layer inputs kept for backward; auto: as memory allows.
  Fp8Retention fp8_keep_inputs = Fp8Retention::automatic;
  double gradient_clip_val = 0;         ///< 0: no clipping
  FaultAction on_nonfinite = FaultAction::stop;  ///< a step whose loss or gradient norm is not finite
  LayerCheckpointing act_ckpt = LayerCheckpointing::none;  ///< layers that recompute their forward in backward
  int64_t val_check_interval = 0;       ///< steps between validations; one more at the end; 0: every epoch
  int64_t early_stopping_patience = 0;  ///< validations without improvement that end the run; 0: never
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

struct EngineSettings : LoadingSettings {
  ModelSection model;
  AdapterSection adapter;
  TrainSection train;
  ParallelSection parallel;
  GenerateSection generate;
  TraceSection trace;
};

/// Returns true if the model reads pictures anywhere in texts. False if its folder cannot be read.
bool reads_pictures_in_texts(const EngineSettings& config);

/// Returns true if parallel.offload lists `what`.
inline bool offloads(const EngineSettings& settings, OffloadedData what) {
  const std::vector<OffloadedData>& all = settings.parallel.offload;
  return std::find(all.begin(), all.end(), what) != all.end();
}

/// Returns the norm that gradients are scaled down to. Infinity: gradients are not scaled, but all are kept until their
/// norm is known so that a step can be skipped. 0: neither; each gradient is consumed as soon as it is final.
inline double largest_norm(const TrainSection& train) {
  if (train.gradient_clip_val > 0) return train.gradient_clip_val;
  return train.on_nonfinite == FaultAction::skip ? std::numeric_limits<double>::infinity() : 0;
}

}  // namespace blipft
