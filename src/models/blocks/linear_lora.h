// LoRA (Hu et al. 2021): y += (alpha / r) B A dropout(x), A [r, in] and B [out, r] trained, the layer's weight frozen.
//
// Layers with the same input (q, k, v; gate, up) share the product with A: their A are consecutive in the adapters'
// unit, [parts * r, in]. So they share a dropout mask, whereas PEFT draws one mask for each layer.
//
// Dimension legend: M rows, P parts with an adapter, r rank.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/blocks/linear_layer.h"

namespace blipft {

class Lora final : public LinearAdapter {
 public:
  struct Part {
    LinearPart outputs;                    ///< of the layer
    int64_t b = -1;                        ///< offset of B [count, r] in the adapters' flat buffer
  };
  int64_t in = 0, rank = 0;
  float scale = 1;
  float dropout = 0;
  uint32_t dropout_site = 0;
  int64_t a = -1;                          ///< offset of [P * r, in] in the adapters' flat buffer
  std::vector<Part> parts;

  bool covers(int64_t columns) const override;
  void forward(const UnitPass& pass, const MatrixView& x, const MatrixView& add, const MatrixView& y) const override;
  Tensor reduce(UnitBackward& pass, const MatrixView& dy) const override;
  void input_gradient(UnitBackward& pass, const MatrixView& dy, const Tensor& reduced, const MatrixView& add,
                      const MatrixView& dx) const override;
  void weight_gradient(UnitBackward& pass, const MatrixView& dy, const Tensor& reduced,
                       const MatrixView& x) const override;

 private:
  int64_t width() const { return rank * static_cast<int64_t>(parts.size()); }
  Tensor a_of(const Tensor& flat) const { return flat.part(a, {width(), in}); }
  Tensor b_of(const Tensor& flat, const Part& part) const { return flat.part(part.b, {part.outputs.count, rank}); }
  MatrixView columns_of(const MatrixView& wide, size_t part) const {
    return wide.columns(static_cast<int64_t>(part) * rank, rank);
  }
  Dropout mask(const UnitPass& pass) const;
  /// Returns dropout(x), which the caller must give back; absent if there is no dropout.
  Tensor dropped(const UnitPass& pass, const MatrixView& x, Stream stream) const;
};

/// Adds the adapters that the settings request to a model's linear layers.
class LoraBuilder {
 public:
  /// A linear layer and the module names of its parts.
  struct Layer {
    LinearLayer* linear;
    std::vector<std::string> modules;
  };
  using AddUnit = std::function<Unit&(const std::string& name)>;
  /// `language`: prefixes of the names of the language model's modules, to which q, k, v, o, mlp, head and language refer.
  /// `add_unit` adds a unit of the adapters' group to the model. `towers`: all-linear means the other modules too.
  LoraBuilder(const AdapterSettings& settings, std::vector<std::string> language, AddUnit add_unit, bool towers = false)
      : settings_(settings), language_(std::move(language)), add_unit_(std::move(add_unit)), towers_(towers) {}

  /// Attaches an adapter to the targets among `layers`, all of `unit`; its parameters are stored in unit.adapter.
  void attach(Unit& unit, const std::vector<Layer>& layers);
  /// Throws UserError if a target named no module, and lists the known names.
  void check() const;

 private:
  void attach(const Layer& layer, Unit& unit);
  bool is_target(const std::string& module);
  bool in_language(const std::string& module) const;
  AdapterSettings settings_;
  std::vector<std::string> language_;
  AddUnit add_unit_;
  bool towers_;
  uint32_t layers_ = 0;                    // number of layers with an adapter
  std::set<std::string> used_, known_;     // targets that named a module; last parts of the modules' names
};

}  // namespace blipft
