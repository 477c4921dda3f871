// Model: an ordered list of units and the forward and backward of one micro-batch over them.
//
// A model knows tensors, ops, the arena and UnitAccess; it does not know which strategy implements UnitAccess.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "blipft/arena.h"
#include "blipft/batch.h"
#include "blipft/choices.h"
#include "blipft/decode_ops.h"
#include "blipft/host_activations.h"
#include "blipft/ops.h"
#include "blipft/rank_operation.h"
#include "blipft/unit.h"

namespace blipft {

/// The activities of a model: forward, recompute, backward or loss of a unit.
using Phase = RankOperation;

/// Receives the phases of the model, for the trace. Each pair of calls encloses the enqueueing in the compute stream.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void begin(Phase phase, const Unit& unit, Stream stream) = 0;
  virtual void end(Phase phase, const Unit& unit, Stream stream) = 0;
};

class Fp8Products;                         // blipft/fp8_products.h

/// The resources that a model works with in one micro-batch.
struct StepContext {
  Ops& ops;
  Device& device;
  Arena& arena;
  UnitAccess& units;
  Stream stream;                           ///< the compute stream
  Stream side;                             ///< runs in parallel to `stream`: weight gradients
  Event forked, joined;                    ///< order the two streams
  StepObserver* observer = nullptr;        ///< optional
  uint64_t seed = 0;                       ///< seed of dropout
  bool training = true;                    ///< false: no dropout
  int64_t max_coded_rows = 0;             ///< products of at most this many rows read quantized weights directly
  HostActivations* in_host = nullptr;      ///< keeps inputs of checkpointed layers; null: device memory keeps them
  Fp8Products* fp8 = nullptr;              ///< chooses the products that run in fp8; null: none
};

/// Inputs and outputs of one pass of decoding, in addition to the batch. Dimensions as in decode_ops.h.
struct CacheCall {
  std::vector<KvCache> layers;             ///< one for each width of Model::cache_widths()
  Tensor slots;                            ///< i32 [M], prompts: slot of each row; absent in a decode step
  Tensor positions;                           ///< i32 [M], cache position of each row; negative: the row is not cached
  Tensor last_rows;                        ///< i32 [B, 1], prompts: the row of each prompt whose logits are returned
  Tensor tokens;                           ///< i32 [S, 1], decode step: the id of each slot's row
  Tensor lengths;                          ///< i32 [S], decode step: number of cache positions that each row attends to
  Tensor rotary_positions;                 ///< i32 [S], decode step, optional: rotary position of each row, if that is not
                                           ///< its position in the cache (M-RoPE: StreamPositions::delta() is added)
  Tensor sources;                          ///< i32 [S, C], decode step, optional: see AttentionDecode
  int64_t sharing = 1;                     ///< as AttentionDecode::sharing: the number of beams of a text
  /// For models that read a source: keys and values of the encoder's output, for cross attention; one for each width of
  /// Model::memory_widths().
  std::vector<KvCache> memory_layers;
  Tensor memory_slots, memory_positions;      ///< i32 [N], prompts: slot and position of each encoder row
  Tensor memory_lengths;                   ///< i32 [S], decode step: number of encoder rows of each slot's source
  Tensor memory_sources;                   ///< i32 [S, P], decode step, optional: as `sources`, for a source of P rows
};

/// train.act_ckpt: the layers that recompute their forward pass in backward.
enum class LayerCheckpointing { none, half, full };
BLIPFT_CHOICE_WORDS(LayerCheckpointing, "none", "half", "full");

/// Activation checkpointing: the layers that recompute their forward in backward.
struct ActivationCheckpointing {
  /// The first `layers_of(n)` of n layers keep only their input.
  LayerCheckpointing kind = LayerCheckpointing::none;
  int64_t layers_of(int64_t n) const {
    return kind == LayerCheckpointing::none ? 0 : kind == LayerCheckpointing::half ? (n + 1) / 2 : n;
  }
};

/// Low-rank adapters of linear layers (LoRA, Hu et al. 2021). With adapters, only these are trained.
struct AdapterSettings {
  int64_t rank = 0;                        ///< 0: no adapters
  float scale = 1;                         ///< factor of the adapters' product
  float dropout = 0;                       ///< dropout probability of the adapters' input
  std::vector<std::string> targets;        ///< q, k, v, o, mlp, head of the language model, or ends of module names
  bool saved = false;                      ///< true: the initial values come from a folder; false: the adapters are new
  bool any() const { return rank > 0; }
};
/// The group of the adapters' parameters.
constexpr const char* kAdapterGroup = "adapter";
inline bool holds_adapters(const Unit& unit) { return unit.group().name == kAdapterGroup; }
/// The prefix that PEFT adds to the name of every tensor of the model.
constexpr std::string_view kAdapterPrefix = "base_model.model.";
/// Returns PEFT's key of an adapter matrix: `which` is lora_A [r, in] or lora_B [out, r], `module`
/// "model.layers.0.mlp.fc1".
std::string adapter_key(const std::string& module, const std::string& which);
/// Returns true if `module` is `end` or ends with it: "mlp.down_proj" names "model.layers.0.mlp.down_proj".
bool names_module(const std::string& end, const std::string& module);
/// Returns the module in a key of adapter_key().
std::string adapted_module(const std::string& key);

struct ModelSettings {
  DType compute = DType::f32;
  std::vector<std::string> freeze;         ///< names of parameter groups without gradient; unknown names are ignored
  ActivationCheckpointing checkpointing;
  bool dropout = true;                     ///< false: all dropout probabilities are 0
  AdapterSettings adapter;
  bool untied_head = false;                ///< the head has its own weight, even if config.json ties it
  bool pictures = false;                   ///< false: a Gemma 3 is its text part alone
  bool trained = true;                     ///< false: nothing is trained, not even adapters
};

/// The beginning of names in a model, and what stands in its place in checkpoints.
struct NamePrefix {
  std::string in_model, in_files;
};

class Model {
 public:
  virtual ~Model() = default;
  /// Returns a description to print: "blip2-opt, 3.74 billion parameters".
  virtual std::string description() const = 0;
  const std::vector<const Unit*>& units() const { return unit_list_; }
  /// The parameter groups, in the order in which they were declared.
  const std::deque<ParameterGroup>& groups() const { return groups_; }
  int64_t parameter_count() const;
  int64_t trainable_parameter_count() const;

  /// Returns which inputs the model reads of a step's samples.
  virtual ModelInputs inputs() const = 0;

  /// Runs forward, loss and backward of one micro-batch: adds to batch.loss, fills and publishes every trainable unit's
  /// gradient. Marks the arena's phases.
  virtual void forward_backward(const StepContext& context, const MicroBatch& batch) = 0;
  /// Runs forward and loss without dropout: adds to batch.loss, keeps nothing for a backward and requests no gradient.
  /// Marks the arena's phases before_forward and after_forward.
  virtual void forward_loss(const StepContext& context, const MicroBatch& batch) = 0;

  /// Returns the widths (K * D) of cached keys and values, one for each layer of self attention. Empty: no generation.
  virtual std::vector<int64_t> cache_widths() const { return {}; }
  /// Returns the widths of keys and values of the encoder's output in cross attention. Empty: there is none.
  virtual std::vector<int64_t> memory_widths() const { return {}; }
  /// Reads prompts, packed as a micro-batch without labels, and writes the keys and values of their rows into the
  /// cache. Returns the logits [B, V] of each prompt's last row, in arena memory that the caller must give back.
  virtual Tensor read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache);
  /// Runs one row of every slot. Returns the logits [S, V], in arena memory that the caller must give back.
  virtual Tensor decode(const StepContext& context, const CacheCall& cache);

  /// Returns the floating-point operations of matrix products and attention in one phase of `unit` in a micro-batch, 2
  /// per multiply-add; 0 for phases that the unit does not have. `loss` is forward and backward together. `text_rows`:
  /// of each sample; their mean if samples differ.
  virtual double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const = 0;
  /// Returns the operations of forward, loss and backward of all units, without recomputation.
  double flops(int64_t batch_size, const TextRows& text_rows) const;

 protected:
  /// Declares a group, trained unless `settings` freeze it. With adapters, only the adapters' group is trained.
  const ParameterGroup& add_group(const ModelSettings& settings, const std::string& name,
                                  Source source = Source::checkpoint);
  Unit& add_unit(const std::string& name, const ParameterGroup& group);
  /// Declares the group of adapters if the settings request adapters; else returns null.
  const ParameterGroup* add_adapter_group(const ModelSettings& settings);
  /// Allows checkpoints, and folders of adapters, to hold the parameters under these names too.
  void add_file_names(const std::vector<NamePrefix>& prefixes);
  std::deque<ParameterGroup> groups_;      // deque: units hold references to groups, which must not move
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<const Unit*> unit_list_;
};

/// Reports the begin and end of one phase of a unit to the observer.
class ObservedPhase {
 public:
  ObservedPhase(const StepContext& context, Phase phase, const Unit& unit)
      : context_(context), phase_(phase), unit_(unit) {
    if (context_.observer) context_.observer->begin(phase_, unit_, context_.stream);
  }
  ~ObservedPhase() {
    if (context_.observer) context_.observer->end(phase_, unit_, context_.stream);
  }
  ObservedPhase(const ObservedPhase&) = delete;
  ObservedPhase& operator=(const ObservedPhase&) = delete;

 private:
  const StepContext& context_;
  Phase phase_;
  const Unit& unit_;
};

/// Makes a model of the family that a config.json names. Throws UserError naming the file and key of whatever is missing or
/// not supported.
using ModelFactory = std::function<std::unique_ptr<Model>(const ModelSettings& settings)>;
/// Reads config.json of `model_directory`. The returned factory reads no file.
ModelFactory read_model(const std::string& model_directory);
inline std::unique_ptr<Model> make_model(const std::string& model_directory, const ModelSettings& settings) {
  return read_model(model_directory)(settings);
}

}  // namespace blipft
