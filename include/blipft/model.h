// Model: an ordered list of units and the program of one micro-batch over them.
//
// A model knows tensors, ops, the arena and its units' brackets;
// it does not know which strategy is behind the brackets.
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
#include "blipft/doing.h"
#include "blipft/host_activations.h"
#include "blipft/ops.h"
#include "blipft/unit.h"

namespace blipft {

/// What a model does with a unit: forward, recompute, backward or loss.
using Phase = Doing;

/// Told of what the model does, for the trace. Calls bracket the enqueueing in the compute stream.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void begin(Phase phase, const Unit& unit, Stream stream) = 0;
  virtual void end(Phase phase, const Unit& unit, Stream stream) = 0;
};

/// What a model works with in one micro-batch.
class Fp8Products;                         // blipft/fp8_products.h

struct StepContext {
  Ops& ops;
  Device& device;
  Arena& arena;
  UnitAccess& units;
  Stream stream;                           ///< the main chain
  Stream side;                             ///< beside it: weight gradients
  Event forked, joined;                    ///< tie the two streams
  StepObserver* observer = nullptr;        ///< optional
  uint64_t seed = 0;                       ///< of dropout
  bool training = true;                    ///< false: nothing is dropped
  int64_t most_coded_rows = 0;             ///< forward multiplies so few rows with weights as they are stored: Ops::coded_rows()
  HostActivations* in_host = nullptr;      ///< where inputs of layers that recompute go meanwhile; null: they stay
  Fp8Products* fp8 = nullptr;              ///< which products take their factors in fp8; null: none
};

/// What a pass of decoding reads and writes besides the batch; legend as in decode_ops.h.
struct CacheCall {
  std::vector<KvCache> layers;             ///< as Model::cache_widths() says
  Tensor slots;                            ///< i32 [M], prompts: of each row; absent in a decode step
  Tensor places;                           ///< i32 [M], of each row; negative: the row is kept nowhere
  Tensor last_rows;                        ///< i32 [B, 1], prompts: the row of each whose logits are wanted
  Tensor tokens;                           ///< i32 [S, 1], a decode step: the id of each slot's row
  Tensor lengths;                          ///< i32 [S], a decode step: places that each row sees
  Tensor sources;                          ///< i32 [S, C], a decode step, optional: see AttentionDecode
  int64_t sharing = 1;                     ///< as AttentionDecode's: the beams of a text
  /// Of models that read a source: keys and values of what the encoder made of it, for cross attention, as
  /// Model::memory_widths() says.
  std::vector<KvCache> memory_layers;
  Tensor memory_slots, memory_places;      ///< i32 [N], prompts: of each row of the encoder
  Tensor memory_lengths;                   ///< i32 [S], a decode step: rows that the encoder made of each slot's source
  Tensor memory_sources;                   ///< i32 [S, P], a decode step, optional: as `sources`, of a source of P rows
};

/// Which layers recompute their forward in backward.
struct ActivationCheckpointing {
  /// The first `layers_of(n)` of n layers keep only their input.
  LayerCheckpointing kind = LayerCheckpointing::none;
  int64_t layers_of(int64_t n) const {
    return kind == LayerCheckpointing::none ? 0 : kind == LayerCheckpointing::half ? (n + 1) / 2 : n;
  }
};

/// Low-rank adapters of linear layers (LoRA, Hu et al. 2021), trained in place of everything else.
struct AdapterSettings {
  int64_t rank = 0;                        ///< 0: no adapters
  float scale = 1;                         ///< of the adapters' product
  float dropout = 0;                       ///< of their input
  std::vector<std::string> targets;        ///< q, k, v, o, mlp, head of the language model, or ends of modules' names
  bool saved = false;                      ///< their first values come from a folder, else they are new
  bool any() const { return rank > 0; }
};
/// The group of the adapters' parameters.
constexpr const char* kAdapterGroup = "adapter";
inline bool holds_adapters(const Unit& unit) { return unit.group().name == kAdapterGroup; }
/// What PEFT puts before the name of every tensor of the model.
constexpr std::string_view kAdapterPrefix = "base_model.model.";
/// PEFT's key of the adapter's matrix `which` (lora_A [r, in], lora_B [out, r]) of a module ("model.layers.0.mlp.fc1").
std::string adapter_key(const std::string& module, const std::string& which);
/// Whether `end` names `module`: "down_proj" or "mlp.down_proj" names "model.layers.0.mlp.down_proj", and so does that itself.
bool names_module(const std::string& end, const std::string& module);
/// The module of such a key.
std::string adapted_module(const std::string& key);

struct ModelSettings {
  DType compute = DType::f32;
  std::vector<std::string> freeze;         ///< names of parameter groups without gradient; others mean nothing
  ActivationCheckpointing checkpointing;
  bool dropout = true;                     ///< false: all dropout probabilities are 0
  AdapterSettings adapter;
  bool untied_head = false;                ///< the head has a weight of its own, whatever config.json says
  bool trained = true;                     ///< false: nothing is trained, adapters neither
};

class Model {
 public:
  virtual ~Model() = default;
  /// "blip2-opt, 3.74 billion parameters", for people.
  virtual std::string description() const = 0;
  const std::vector<const Unit*>& units() const { return unit_list_; }
  /// The parameter groups, in the order in which they were declared.
  const std::deque<ParameterGroup>& groups() const { return groups_; }
  int64_t parameter_count() const;
  int64_t trainable_parameter_count() const;

  /// What the model reads of a step's samples.
  virtual ModelInputs inputs() const = 0;

  /// Forward, loss and backward of one micro-batch: adds to batch.loss, fills and publishes every trainable unit's
  /// gradient. Marks the arena's phases.
  virtual void forward_backward(const StepContext& context, const MicroBatch& batch) = 0;
  /// Forward and loss alone, without dropout: adds to batch.loss, keeps nothing for a backward, asks for no gradient.
  /// Marks the arena's phases before_forward and after_forward.
  virtual void forward_loss(const StepContext& context, const MicroBatch& batch) = 0;

  /// Decoding keeps keys and values of these widths (K * D), one a layer that texts attend in. Empty: it generates no text.
  virtual std::vector<int64_t> cache_widths() const { return {}; }
  /// The same of cross attention to what an encoder makes of a source. Empty: the model has none.
  virtual std::vector<int64_t> memory_widths() const { return {}; }
  /// Reads prompts, packed as a micro-batch without labels: writes keys and values of their rows into the cache. Returns
  /// the logits [B, V] behind each prompt's last row, taken from the arena, which the caller gives back.
  virtual Tensor read_prompts(const StepContext& context, const MicroBatch& batch, const CacheCall& cache);
  /// One row of every slot. Returns the logits [S, V], likewise.
  virtual Tensor decode(const StepContext& context, const CacheCall& cache);

  /// Floating-point operations of one phase of `unit` in a micro-batch, of matrix products and attention, 2 per
  /// multiply-add; 0 for phases that the unit does not have. `loss` is forward and backward together.
  /// `text_rows` of each sample; where they differ, their mean.
  virtual double unit_flops(const Unit& unit, Phase phase, int64_t batch_size, const TextRows& text_rows) const = 0;
  /// Of forward, loss and backward of all units: what the mathematics needs (no recomputation).
  double flops(int64_t batch_size, const TextRows& text_rows) const;

 protected:
  /// Declares a group, trained unless `settings` freeze it. With adapters these alone are trained.
  const ParameterGroup& add_group(const ModelSettings& settings, const std::string& name,
                                  Source source = Source::checkpoint);
  Unit& add_unit(const std::string& name, const ParameterGroup& group);
  /// The group of adapters, where the settings ask for any: null otherwise.
  const ParameterGroup* add_adapter_group(const ModelSettings& settings);
  std::deque<ParameterGroup> groups_;      // which never move: units refer to them
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<const Unit*> unit_list_;
};

/// Brackets one phase of a unit for the observer.
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
/// Reads config.json of `model_directory`. What is returned reads no file.
ModelFactory read_model(const std::string& model_directory);
inline std::unique_ptr<Model> make_model(const std::string& model_directory, const ModelSettings& settings) {
  return read_model(model_directory)(settings);
}

}  // namespace blipft
