// Fp8Products: selects the matrices of a model that are multiplied in fp8 and manages their quantized values in a pass.
//
// The products of a layer y = x w^T use x and w as f8e4m3; its gradients use dy as f8e5m2 or f8e4m3. Each cast uses a
// scale of the tensor's current values (current scaling, one scale for a tensor: Fp8Cast), so a pass does not depend on
// earlier passes. LinearLayer creates and uses the quantized tensors; this class selects the matrices and owns the
// weights' tensors that stay allocated.
//
// A weight does not change within a step. If its quantized values are kept, they are made at the first use in a step,
// in both layouts, and serve all micro-batches and recomputations. If not, each use makes the layout that it needs. A
// frozen weight that is stored in fp8 is used as stored, so only its transposed layout is made.
//
// For an input x that backward would recompute with the same bits, the transposed quantized values may be kept from
// forward, or from the recomputation, for the weight gradient (Fp8Settings::keep_inputs); x is then not kept,
// recomputed or cast again.
//
// Each factor of each matrix has a word, which holds the largest magnitude of its tensor: x and dy for a micro-batch, w
// for a step. All words are reset by one memset. A magnitude is computed at most once: by the op that writes the tensor
// if its caller passes it the word (amax()), else by the first cast. Later casts of the same tensor, in backward or in
// a recomputation, read the word. If a matrix has several input tensors in a micro-batch, the word belongs to the first
// of them, and the casts of the others compute their own magnitudes.
//
// During a step the casts also record statistics of each factor: the largest magnitude and, with Fp8Settings::counts,
// how many elements became zero. They include x of every micro-batch's forward (not of recomputations), w once, when it
// is cast, and dy of every backward.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blipft/model.h"

namespace blipft {

/// The factors of y = x w^T and of its gradients, for which casts keep separate statistics.
enum class Fp8Factor { x, w, dy };
constexpr int64_t kFp8Factors = 3;
/// Returns "x", "w" or "dy".
const char* fp8_factor_name(Fp8Factor factor);

/// Statistics of a factor's casts in one step.
struct Fp8Found {
  float amax = 0;                          ///< not finite if an element is not finite
  int64_t counts[kFp8Counts] = {};         ///< zeros if counting is off
};

struct Fp8Settings {
  DType gradients = DType::f8e4m3;
  /// A product saves time proportional to m n k and its casts cost about m k + m n + n k elements: layers with in * out
  /// / (in + out) below this value gain nothing.
  int64_t min_size = 1300;
  std::vector<std::string> excluded;       ///< suffixes of the names of modules that are not multiplied in fp8
  int64_t kept_bytes = 0;                  ///< bytes for quantized weights that are kept over a step
  bool counts = false;                     ///< if true, casts in steps also count elements: Fp8Cast::counts
  /// Returns true if UnitAccess::fp8_values() provides the unit's matrix at this offset; null: no matrix is stored in
  /// fp8.
  std::function<bool(const Unit& unit, int64_t weight)> stored;
  bool keep_inputs = false;                ///< quantized inputs are kept for backward, one byte an element
};

/// A quantized matrix in one or both layouts.
struct Fp8Values {
  Fp8Matrix plain, transposed;
  std::array<Tensor, 3> owned;             ///< the arena tensors that hold them; the other entries are absent
};
/// Number of f32 values in a word of a cast tensor; amax is at index 0, the scale at kScaleWord.
constexpr int64_t kFp8Words = 8, kScaleWord = 4;
enum class Fp8Layouts { plain, transposed, both };
/// Relation of a tensor to the earlier cast of the same factor.
enum class Fp8Seen {
  never,                                   ///< first cast in this micro-batch: its magnitude is recorded
  same,                                    ///< bitwise equal to the tensor that was cast as `never`
  alike,                                   ///< equal to that tensor up to rounding: it was recomputed in another way
};
/// The statistics to which a cast adds (arguments of Fp8Cast); absent: none.
struct Fp8Notes {
  Tensor largest, counts;
};
/// Calls `to` with each tensor that was allocated from the arena.
template <class F>
void each_owned(const Fp8Values& made, F to) {
  for (const Tensor& tensor : made.owned)
    if (tensor) to(tensor);
}

class Fp8Products {
 public:
  /// The decision for a matrix: multiplied in fp8, or the reason why it stays in the compute dtype.
  enum class Choice { fp8, small, odd, excluded };
  /// State of a factor's word: unused: empty; requested: amax() was called, the op that writes the tensor fills the word;
  /// known: it holds the magnitude of the tensor that was cast; of_several: it holds that of the first of several
  /// tensors.
  enum class Word { unused, requested, known, of_several };
  /// State of the quantized x for backward: not kept, kept, or already taken by backward.
  enum class Input { none, kept, moved };
  struct Matrix {
    Choice choice = Choice::fp8;
    Tensor quantized, transposed;              // [out, in], [in, out]; absent if not kept
    std::array<Word, kFp8Factors> words{};
    Input input = Input::none;
    Tensor input_values;                    // [in, fp8_columns(M)], while kept
    bool fresh = false;                    // true if the kept values are those of this pass
    int64_t number = -1;                   // index among the fp8 matrices, for its statistics and names()
    bool noted = false;                    // true if the statistics of the weight are recorded in this pass
    bool stored = false;                   // true if stored in fp8: only `transposed` is made
    int64_t bytes = 0;                     // bytes that keeping the weight needs
  };
  /// Declares the memory of the weights' quantized values that are kept.
  Fp8Products(const std::vector<const Unit*>& units, Fp8Settings settings, Arena& arena);
  /// Called after Arena::commit.
  void bind(const Arena& arena);
  /// Marks the kept values as outdated because weights may have changed. Statistics are off until begin_notes(), and
  /// words are unusable until begin_micro_batch().
  void begin_pass();
  /// Resets the words of x and dy, and before the first micro-batch of a pass also those of weights. All casts of the
  /// preceding micro-batch must precede it in `stream`. Without this call each cast computes its own magnitude.
  void begin_micro_batch(Device& device, Stream stream);
  /// Marks the pass as a step: zeroes the statistics; casts accumulate them from now on.
  void begin_notes(Device& device, Stream stream);
  /// Returns the statistics of a factor of the unit's matrix at offset `weight`; absent if statistics are off.
  Fp8Notes notes(const Unit& unit, int64_t weight, Fp8Factor factor) const;
  /// The names of the modules of each fp8 matrix in the order of forward: "model.layers.0.self_attn.q_proj, k_proj".
  const std::vector<std::string>& names() const { return names_; }
  /// Statistics of a step, [names().size() * kFp8Factors] f32 amax and kFp8Counts i64 counts for each, with the factors
  /// of a matrix adjacent. The counts are absent if counting is off; both are absent if no matrix is in fp8.
  const Tensor& largest() const { return largest_; }
  const Tensor& counts() const { return counts_; }
  /// Returns the first non-finite amax in the order of forward and then backward, as "x of
  /// model.layers.0.mlp.down_proj", or "" if all are finite.
  std::string first_not_finite(const float* largest) const;

  /// True if the matrix is multiplied in fp8. The matrix of the head never is: it is not in Unit::matrices.
  bool takes(const Unit& unit, int64_t weight) const;
  /// For the op that writes x or dy of the unit's matrix at offset `weight`, if this tensor is cast next: returns an
  /// f32 [1], zeroed in the main stream, which the op raises to the largest magnitude that it writes (Fp8Magnitude).
  /// Absent: not needed.
  Tensor amax(const Unit& unit, int64_t weight, Fp8Factor factor);
  /// Quantizes x or dy of the unit's matrix at offset `weight` into memory that it reserves in the arena.
  Fp8Values cast(const StepContext& context, const Unit& unit, int64_t weight, Fp8Factor factor, const MatrixView& tensor,
                Fp8Seen seen, Fp8Layouts layouts, Stream stream);
  /// Quantizes an input x in the main stream, in the layout [rows, cols]. If inputs are kept and x is the matrix's only
  /// input of the micro-batch, the transposed layout is made too and kept until take_input().
  Fp8Values cast_to_keep(const StepContext& context, const Unit& unit, int64_t weight, const MatrixView& x, Fp8Seen seen);
  /// True if the matrix's quantized input is, or was in this micro-batch, kept: x need not be recomputed for backward.
  bool keeps_input(const Unit& unit, int64_t weight) const;
  /// Returns the kept transposed input, whose memory the caller must release; empty if none is kept.
  Fp8Values take_input(const Unit& unit, int64_t weight);
  /// Returns the quantized matrix `w` [out, in] at offset `weight` in at least the requested layout, and makes it in
  /// the main stream if needed. `stored`: the matrix as it is stored in fp8, if it is; `w` is not read then.
  Fp8Values weight(const StepContext& context, const Unit& unit, int64_t weight, const Tensor& w, const Fp8Matrix& stored,
                  Fp8Layouts layout);

  /// Keyed by unit index and offset of the weight.
  const std::map<std::pair<int64_t, int64_t>, Matrix>& matrices() const { return matrices_; }
  int64_t kept_bytes() const { return kept_bytes_; }

 private:
  static Fp8Values of_stored(const StepContext& context, Matrix& kept, const Fp8Matrix& stored, Fp8Layouts layout);
  Tensor words(const Matrix& matrix, Fp8Factor factor) const;
  /// Returns how a cast uses the factor's word; empty: the cast must use a word of its own.
  std::optional<Fp8Magnitude> use_word(Matrix& matrix, Fp8Factor factor, Fp8Seen seen) const;
  Fp8Values cast(const StepContext& context, Matrix& matrix, Fp8Factor factor, const MatrixView& tensor, Fp8Seen seen,
                Fp8Layouts layouts, Stream stream, const Fp8Notes& notes) const;
  Fp8Settings settings_;
  std::map<std::pair<int64_t, int64_t>, Matrix> matrices_;
  int64_t kept_bytes_ = 0;
  std::vector<std::string> names_;
  Tensor largest_, counts_;
  Tensor words_;                           // f32 [kFp8Factors, matrices, kFp8Words], those of weights first
  bool noting_ = false, ready_ = false;
};

}  // namespace blipft
