// LoRA (Hu et al. 2021): y += (alpha / r) B A dropout(x), A [r, in] and B [out, r] trained, the layer's weight frozen.
//
// Layers over one input (q, k, v; gate, up) share the product with A: theirs lie one behind the other in the unit
// beside the layer's, [parts * r, in], and so they share a dropout mask, where PEFT draws one for each.
//
// Dimension legend: M rows, P parts that have an adapter, r rank.
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
    int64_t b = -1;                        ///< B [count, r], in the adapters' flat buffer
  };
  int64_t in = 0, rank = 0;
  float scale = 1;
  float dropout = 0;
  uint32_t dropout_site = 0;
  int64_t a = -1;                          ///< [P * r, in], in the adapters' flat buffer
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
  /// x through the dropout, where there is one: memory from the arena that the caller gives back.
  Tensor dropped(const UnitPass& pass, const MatrixView& x, Stream stream) const;
};

/// Gives a model's linear layers the adapters that the settings ask for.
class LoraBuilder {
 public:
  /// A linear layer and the names of its parts' modules.
  struct Layer {
    LinearLayer* linear;
    std::vector<std::string> modules;
  };
  using AddUnit = std::function<Unit&(const std::string& name)>;
  /// `language`: how the names of the language model's modules begin, to which q, k, v, o, mlp and head refer.
  /// `add_unit` adds a unit of the adapters' group to the model.
  LoraBuilder(const AdapterSettings& settings, std::string language, AddUnit add_unit)
      : settings_(settings), language_(std::move(language)), add_unit_(std::move(add_unit)) {}

  /// Attaches an adapter to what of `layers`, all of `unit`, is a target; the parameters go to a unit beside it.
  void attach(Unit& unit, const std::vector<Layer>& layers);
  /// Throws UserError when a target named no module, with what it might have been.
  void check() const;

 private:
  void attach(const Layer& layer, Unit& unit);
  bool is_target(const std::string& module);
  AdapterSettings settings_;
  std::string language_;
  AddUnit add_unit_;
  uint32_t layers_ = 0;                    // that have an adapter
  std::set<std::string> used_, known_;     // targets that named a module; last parts of the modules' names
};

}  // namespace blipft
