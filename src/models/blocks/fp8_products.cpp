// The choice of products in fp8, and the codes of weights; see fp8_products.h.
#include "blipft/fp8_products.h"

#include <algorithm>
#include <cmath>

namespace blipft {

namespace {

// The whole name of the first module, and how the others differ from it: they are one layer's.
std::string name_of(const WeightMatrix& matrix) {
  std::string name;
  for (const std::string& module : matrix.modules) name += name.empty() ? module : concat(", ", module.substr(module.rfind('.') + 1));
  return name;
}

bool excluded(const WeightMatrix& matrix, const std::vector<std::string>& ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) {
    return std::any_of(matrix.modules.begin(), matrix.modules.end(),
                       [&](const std::string& module) { return names_module(end, module); });
  });
}

Fp8Products::Choice choice_of(const WeightMatrix& matrix, const Fp8Settings& settings) {
  using Choice = Fp8Products::Choice;
  if (matrix.in % kFp8Alignment != 0 || matrix.out % kFp8Alignment != 0) return Choice::odd;
  if (excluded(matrix, settings.excluded)) return Choice::excluded;
  return matrix.in * matrix.out < settings.least_size * (matrix.in + matrix.out) ? Choice::small : Choice::fp8;
}

}  // namespace

Fp8Products::Fp8Products(const std::vector<const Unit*>& units, Fp8Settings settings, Arena& arena)
    : settings_(std::move(settings)) {
  constexpr const char* kName = "weights in fp8";
  for (const Unit* unit : units)
    for (const WeightMatrix& matrix : unit->matrices()) {
      Matrix& entry = matrices_[{unit->index, matrix.offset}];
      entry.choice = choice_of(matrix, settings_);
      if (entry.choice != Choice::fp8) continue;
      entry.number = static_cast<int64_t>(names_.size()), names_.push_back(name_of(matrix));
      entry.stored = settings_.stored && settings_.stored(*unit, matrix.offset);
      entry.bytes = (entry.stored ? 1 : 2) * matrix.in * matrix.out;
      if (kept_bytes_ + entry.bytes > settings_.kept_bytes) continue;
      kept_bytes_ += entry.bytes;
      entry.transposed = arena.persistent(Owner::parameters, kName, DType::f8e4m3, {matrix.in, matrix.out});
      if (entry.stored) continue;
      entry.codes = arena.persistent(Owner::parameters, kName, DType::f8e4m3, {matrix.out, matrix.in});
      entry.words = arena.persistent(Owner::parameters, kName, DType::f32, {kFp8Words});
    }
  const int64_t factors = static_cast<int64_t>(names_.size()) * kFp8Factors;
  if (factors == 0) return;
  largest_ = arena.persistent(Owner::data, "step results", DType::f32, {factors});
  if (settings_.counts) counts_ = arena.persistent(Owner::data, "step results", DType::i64, {factors * kFp8Counts});
}

const char* fp8_factor_name(Fp8Factor factor) {
  return factor == Fp8Factor::x ? "x" : factor == Fp8Factor::w ? "w" : "dy";
}

void Fp8Products::bind(const Arena& arena) {
  for (auto& [place, matrix] : matrices_)
    for (Tensor* tensor : {&matrix.codes, &matrix.transposed, &matrix.words})
      if (*tensor) *tensor = arena.resolve(*tensor);
  for (Tensor* tensor : {&largest_, &counts_})
    if (*tensor) *tensor = arena.resolve(*tensor);
}

void Fp8Products::begin_pass() {
  for (auto& [place, matrix] : matrices_) matrix.fresh = matrix.noted = false;
  noting_ = false;
}

void Fp8Products::begin_notes(Device& device, Stream stream) {
  noting_ = true;
  for (const Tensor& tensor : {largest_, counts_})
    if (tensor) device.zero(tensor.data, tensor.bytes(), stream);
}

Fp8Notes Fp8Products::notes(const Unit& unit, int64_t weight, Fp8Factor factor) const {
  if (!noting_) return {};
  const int64_t place = matrices_.at({unit.index, weight}).number * kFp8Factors + static_cast<int64_t>(factor);
  return {largest_.part(place, {1}), counts_ ? counts_.part(place * kFp8Counts, {kFp8Counts}) : Tensor{}};
}

std::string Fp8Products::first_not_finite(const float* largest) const {
  const auto found = [&](size_t matrix, Fp8Factor factor) {
    return !std::isfinite(largest[matrix * kFp8Factors + static_cast<size_t>(factor)]);
  };
  const auto text = [&](size_t matrix, Fp8Factor factor) { return concat(fp8_factor_name(factor), " of ", names_[matrix]); };
  for (size_t i = 0; i < names_.size(); ++i)
    for (Fp8Factor factor : {Fp8Factor::x, Fp8Factor::w})
      if (found(i, factor)) return text(i, factor);
  for (size_t i = names_.size(); i-- > 0;)
    if (found(i, Fp8Factor::dy)) return text(i, Fp8Factor::dy);
  return "";
}

bool Fp8Products::takes(const Unit& unit, int64_t weight) const {
  const auto found = matrices_.find({unit.index, weight});
  return found != matrices_.end() && found->second.choice == Choice::fp8;
}

Fp8Codes Fp8Products::of_stored(const StepContext& context, Matrix& kept, const Fp8Matrix& stored, Fp8Layouts layout) {
  Fp8Codes found{.codes = stored};
  if (layout == Fp8Layouts::codes) return found;
  Tensor transposed = kept.transposed;
  if (!transposed)
    found.turned = transposed = context.arena.take(Owner::activations, "fp8", DType::f8e4m3,
                                                   {stored.codes.cols(), fp8_columns(stored.codes.rows())});
  if (found.turned || !kept.fresh) context.ops.transpose_fp8(stored.codes, transposed, context.stream);
  kept.fresh = true;
  found.transposed = {transposed, stored.scale};
  return found;
}

Fp8Codes Fp8Products::weight(const StepContext& context, const Unit& unit, int64_t weight, const Tensor& w,
                             const Fp8Matrix& stored, Fp8Layouts layout) {
  Matrix& kept = matrices_.at({unit.index, weight});
  BLIPFT_CHECK(kept.stored == static_cast<bool>(stored), "unit ", unit.name(), ": a matrix is stored in fp8, or not, otherwise than planned");
  if (stored) return of_stored(context, kept, stored, layout);
  const Fp8Notes of_w = std::exchange(kept.noted, true) ? Fp8Notes{} : notes(unit, weight, Fp8Factor::w);
  if (!kept.codes) return cast_fp8(context, w, DType::f8e4m3, layout, context.stream, of_w);
  const Tensor scale = kept.words.part(kScaleWord, {1});
  if (!kept.fresh)
    context.ops.cast_fp8({.x = w, .amax = kept.words.part(0, {1}), .scale = scale, .codes = kept.codes,
                          .transposed = kept.transposed, .largest = of_w.largest, .counts = of_w.counts}, context.stream);
  kept.fresh = true;
  return {{kept.codes, scale}, {kept.transposed, scale}, {}};
}

Fp8Codes cast_fp8(const StepContext& context, const MatrixView& x, DType dtype, Fp8Layouts layouts, Stream stream,
                  const Fp8Notes& notes) {
  const auto take = [&](DType of, const Shape& shape) { return context.arena.take(Owner::activations, "fp8", of, shape); };
  Fp8Codes made;
  made.words = take(DType::f32, {kFp8Words});
  const Tensor scale = made.words.part(kScaleWord, {1});
  if (layouts != Fp8Layouts::transposed) made.codes = {take(dtype, {x.rows(), x.cols()}), scale};
  if (layouts != Fp8Layouts::codes) made.transposed = {take(dtype, {x.cols(), fp8_columns(x.rows())}), scale};
  context.ops.cast_fp8({.x = x, .amax = made.words.part(0, {1}), .scale = scale, .codes = made.codes.codes,
                        .transposed = made.transposed.codes, .largest = notes.largest, .counts = notes.counts}, stream);
  return made;
}

}  // namespace blipft
