// Settings of weights: which model and adapters a run begins with, and how they are stored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/choices.h"

namespace blipft {

/// model.init: the source of the first weights.
enum class InitialWeights { pretrained, random };
BLIPFT_CHOICE_WORDS(InitialWeights, "pretrained", "random");
/// model.quantize: the storage format of frozen layers' weights.
enum class WeightQuantization { none, nf4, int8, fp8 };
BLIPFT_CHOICE_WORDS(WeightQuantization, "none", "nf4", "int8", "fp8");
/// adapter.kind
enum class AdapterKind { none, lora };
BLIPFT_CHOICE_WORDS(AdapterKind, "none", "lora");
/// adapter.dtype: the type of adapter weights, gradients and optimizer states.
enum class AdapterDtype { f32, bf16 };
BLIPFT_CHOICE_WORDS(AdapterDtype, "f32", "bf16");

struct ModelSection {
  std::string path;                     ///< directory with config.json (and weights, tokenizer, preprocessor files)
  InitialWeights init = InitialWeights::pretrained;  ///< source of the first weights
  bool pictures = false;                ///< false: a Gemma 3 is its text part alone
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

}  // namespace blipft
