// PictureTower: the part of a model that computes rows of a text from patches of pictures that stand anywhere in it.
//
// Dimension legend: N picture rows of a micro-batch, H hidden size of the language model.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/blocks/linear_lora.h"

namespace blipft {

/// The rows of pictures that a tower computes; in backward their gradients.
struct PictureRows {
  Tensor rows;                             ///< [N, H], stand in the text
  std::vector<Tensor> deeper;              ///< [N, H] each: are added to the text's rows after each of the first layers
};

class PictureTower {
 public:
  virtual ~PictureTower() = default;
  /// Returns a part of the model's description: "vision 24 x 1024".
  virtual std::string description() const = 0;
  virtual PatchInputs inputs() const = 0;
  /// Returns true if backward() is needed.
  virtual bool trained() const = 0;
  /// Returns rows that the caller must give back; `save` keeps what backward needs. The micro-batch has at least one row of
  /// pictures, if need be of padding.
  virtual PictureRows forward(const StepContext& context, const MicroBatch& batch, bool save) = 0;
  /// Takes ownership of the gradients, publishes every trained unit.
  virtual void backward(const StepContext& context, const MicroBatch& batch, PictureRows gradients) = 0;
  /// Like Model::unit_flops(), for `rows` rows of `pictures` pictures in all; nullopt for a unit of another part of the model.
  virtual std::optional<double> unit_flops(const Unit& unit, Phase phase, double rows, double pictures) const = 0;
};

/// Settings of a tower's constructor, and where it adds its units and adapters.
struct TowerBuilding {
  const ModelSettings& settings;
  std::function<Unit&(const std::string& name)> vision, merger;  ///< add units of these parameter groups
  LoraBuilder& lora;
};

}  // namespace blipft
