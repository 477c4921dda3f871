// Chooses the products in fp8 and quantizes their factors; see fp8_products.h.
#include "blipft/fp8_products.h"

#include <algorithm>
#include <cmath>

namespace blipft {

namespace {

// Returns the full name of the first module and the last parts of the others, which belong to the same layer.
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
  return matrix.in * matrix.out < settings.min_size * (matrix.in + matrix.out) ? Choice::small : Choice::fp8;
}

/// Returns the element of an array with one element per factor.
template <class Array>
auto& at(Array& of_factors, Fp8Factor factor) {
  return of_factors[static_cast<size_t>(factor)];
}

/// Gives the kept input back if the matrix meets another input: the order of their backwards is unknown.
void drop_input(const StepContext& context, Fp8Products::Matrix& matrix) {
  if (std::exchange(matrix.input, Fp8Products::Input::none) == Fp8Products::Input::kept)
    context.arena.give(std::exchange(matrix.input_values, {}));
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
      entry.quantized = arena.persistent(Owner::parameters, kName, DType::f8e4m3, {matrix.out, matrix.in});
    }
  const int64_t factors = static_cast<int64_t>(names_.size()) * kFp8Factors;
  if (factors == 0) return;
  words_ = arena.persistent(Owner::data, "step results", DType::f32, {factors * kFp8Words});
  largest_ = arena.persistent(Owner::data, "step results", DType::f32, {factors});
  if (settings_.counts) counts_ = arena.persistent(Owner::data, "step results", DType::i64, {factors * kFp8Counts});
}

const char* fp8_factor_name(Fp8Factor factor) {
  return factor == Fp8Factor::x ? "x" : factor == Fp8Factor::w ? "w" : "dy";
}

void Fp8Products::bind(const Arena& arena) {
  for (auto& [key, matrix] : matrices_)
    for (Tensor* tensor : {&matrix.quantized, &matrix.transposed})
      if (*tensor) *tensor = arena.resolve(*tensor);
  for (Tensor* tensor : {&largest_, &counts_, &words_})
    if (*tensor) *tensor = arena.resolve(*tensor);
}

void Fp8Products::begin_pass() {
  for (auto& [key, matrix] : matrices_) matrix.fresh = matrix.noted = false;
  noting_ = ready_ = false;
}

// Quantized weights stay for the whole pass, and so do their magnitudes and scales.
void Fp8Products::begin_micro_batch(Device& device, Stream stream) {
  if (!words_) return;
  const int64_t of_weights = ready_ ? words_.numel() / kFp8Factors : 0;
  const Tensor stale = words_.part(of_weights, {words_.numel() - of_weights});
  device.zero(stale.data, stale.bytes(), stream);
  for (auto& [key, matrix] : matrices_) {
    BLIPFT_CHECK(ready_ || !matrix.fresh || matrix.stored, "a weight was cast before the first micro-batch of a pass");
    BLIPFT_CHECK(matrix.input != Input::kept, "codes of an input were kept for a backward that did not come");
    matrix.words = {Word::unused, ready_ ? at(matrix.words, Fp8Factor::w) : Word::unused, Word::unused};
    matrix.input = Input::none;
  }
  ready_ = true;
}

void Fp8Products::begin_notes(Device& device, Stream stream) {
  noting_ = true;
  for (const Tensor& tensor : {largest_, counts_})
    if (tensor) device.zero(tensor.data, tensor.bytes(), stream);
}

Fp8Notes Fp8Products::notes(const Unit& unit, int64_t weight, Fp8Factor factor) const {
  if (!noting_) return {};
  const int64_t index = matrices_.at({unit.index, weight}).number * kFp8Factors + static_cast<int64_t>(factor);
  return {largest_.part(index, {1}), counts_ ? counts_.part(index * kFp8Counts, {kFp8Counts}) : Tensor{}};
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

Tensor Fp8Products::words(const Matrix& matrix, Fp8Factor factor) const {
  const int64_t row = factor == Fp8Factor::w ? 0 : factor == Fp8Factor::x ? 1 : 2, rows = static_cast<int64_t>(names_.size());
  return words_.part((row * rows + matrix.number) * kFp8Words, {kFp8Words});
}

std::optional<Fp8Magnitude> Fp8Products::use_word(Matrix& matrix, Fp8Factor factor, Fp8Seen seen) const {
  Word& word = at(matrix.words, factor);
  if (!ready_) return {};
  if (seen != Fp8Seen::never)
    return seen == Fp8Seen::same && word == Word::known ? std::optional(Fp8Magnitude::given) : std::nullopt;
  switch (std::exchange(word, word == Word::unused || word == Word::requested ? Word::known : Word::of_several)) {
    case Word::unused: return Fp8Magnitude::raised;
    case Word::requested: return Fp8Magnitude::given;
    default: return {};
  }
}

Tensor Fp8Products::amax(const Unit& unit, int64_t weight, Fp8Factor factor) {
  Matrix& matrix = matrices_.at({unit.index, weight});
  Word& word = at(matrix.words, factor);
  if (!ready_ || word != Word::unused) return {};
  word = Word::requested;
  return words(matrix, factor).part(0, {1});
}

Fp8Values Fp8Products::cast(const StepContext& context, const Unit& unit, int64_t weight, Fp8Factor factor,
                           const MatrixView& tensor, Fp8Seen seen, Fp8Layouts layouts, Stream stream) {
  Matrix& matrix = matrices_.at({unit.index, weight});
  if (factor == Fp8Factor::x && seen == Fp8Seen::never) drop_input(context, matrix);
  return cast(context, matrix, factor, tensor, seen, layouts, stream,
              seen == Fp8Seen::never ? notes(unit, weight, factor) : Fp8Notes{});
}

Fp8Values Fp8Products::cast(const StepContext& context, Matrix& matrix, Fp8Factor factor, const MatrixView& tensor, Fp8Seen seen,
                           Fp8Layouts layouts, Stream stream, const Fp8Notes& notes) const {
  Fp8Values made;
  const auto take = [&](size_t i, DType dtype, const Shape& shape) {
    const bool stays = i == 2 && factor == Fp8Factor::x && layouts == Fp8Layouts::both;
    return made.owned[i] = context.arena.take(Owner::activations, stays ? "inputs in fp8" : "fp8", dtype, shape);
  };
  const std::optional<Fp8Magnitude> magnitude = use_word(matrix, factor, seen);
  const Tensor words = magnitude ? this->words(matrix, factor) : take(0, DType::f32, {kFp8Words});
  const Tensor scale = words.part(kScaleWord, {1});
  const DType dtype = factor == Fp8Factor::dy ? settings_.gradients : DType::f8e4m3;
  if (layouts != Fp8Layouts::transposed) made.plain = {take(1, dtype, {tensor.rows(), tensor.cols()}), scale};
  if (layouts != Fp8Layouts::plain) made.transposed = {take(2, dtype, {tensor.cols(), fp8_columns(tensor.rows())}), scale};
  context.ops.cast_fp8({.x = tensor, .amax = words.part(0, {1}), .scale = scale, .quantized = made.plain.quantized,
                        .transposed = made.transposed.quantized, .largest = notes.largest, .counts = notes.counts,
                        .magnitude = magnitude.value_or(Fp8Magnitude::found)}, stream);
  return made;
}

Fp8Values Fp8Products::cast_to_keep(const StepContext& context, const Unit& unit, int64_t weight, const MatrixView& x, Fp8Seen seen) {
  Matrix& matrix = matrices_.at({unit.index, weight});
  const Word word = at(matrix.words, Fp8Factor::x);
  const bool only = ready_ && matrix.input == Input::none && (seen == Fp8Seen::never ? word < Word::known : word == Word::known);
  const bool keep = settings_.keep_inputs && only;
  if (seen == Fp8Seen::never) drop_input(context, matrix);
  Fp8Values made = cast(context, unit, weight, Fp8Factor::x, x, seen, keep ? Fp8Layouts::both : Fp8Layouts::plain, context.stream);
  if (!keep) return made;
  matrix.input = Input::kept;
  matrix.input_values = std::exchange(made.owned[2], {});
  return made;
}

bool Fp8Products::keeps_input(const Unit& unit, int64_t weight) const {
  const auto found = matrices_.find({unit.index, weight});
  return found != matrices_.end() && found->second.input != Input::none;
}

Fp8Values Fp8Products::take_input(const Unit& unit, int64_t weight) {
  Matrix& matrix = matrices_.at({unit.index, weight});
  Fp8Values made;
  if (matrix.input != Input::kept) return made;
  matrix.input = Input::moved;
  made.owned[2] = std::exchange(matrix.input_values, {});
  made.transposed = {made.owned[2], words(matrix, Fp8Factor::x).part(kScaleWord, {1})};
  return made;
}

Fp8Values Fp8Products::of_stored(const StepContext& context, Matrix& kept, const Fp8Matrix& stored, Fp8Layouts layout) {
  Fp8Values found{.plain = stored};
  if (layout == Fp8Layouts::plain) return found;
  Tensor transposed = kept.transposed;
  if (!transposed)
    found.owned[0] = transposed = context.arena.take(Owner::activations, "fp8", DType::f8e4m3,
                                                     {stored.quantized.cols(), fp8_columns(stored.quantized.rows())});
  if (found.owned[0] || !kept.fresh) context.ops.transpose_fp8(stored.quantized, transposed, context.stream);
  kept.fresh = true;
  found.transposed = {transposed, stored.scale};
  return found;
}

Fp8Values Fp8Products::weight(const StepContext& context, const Unit& unit, int64_t weight, const Tensor& w,
                             const Fp8Matrix& stored, Fp8Layouts layout) {
  Matrix& kept = matrices_.at({unit.index, weight});
  BLIPFT_CHECK(kept.stored == static_cast<bool>(stored), "unit ", unit.name(), ": a matrix is stored in fp8, or not, otherwise than planned");
  if (stored) return of_stored(context, kept, stored, layout);
  const Fp8Notes of_w = std::exchange(kept.noted, true) ? Fp8Notes{} : notes(unit, weight, Fp8Factor::w);
  const Fp8Seen seen = at(kept.words, Fp8Factor::w) == Word::unused ? Fp8Seen::never : Fp8Seen::same;
  if (!kept.quantized) return cast(context, kept, Fp8Factor::w, w, seen, layout, context.stream, of_w);
  const Tensor of_word = words(kept, Fp8Factor::w), scale = of_word.part(kScaleWord, {1});
  if (!kept.fresh)
    context.ops.cast_fp8({.x = w, .amax = of_word.part(0, {1}), .scale = scale, .quantized = kept.quantized, .transposed = kept.transposed,
                          .largest = of_w.largest, .counts = of_w.counts,
                          .magnitude = use_word(kept, Fp8Factor::w, seen).value_or(Fp8Magnitude::found)}, context.stream);
  kept.fresh = true;
  return {{kept.quantized, scale}, {kept.transposed, scale}, {}};
}

}  // namespace blipft
