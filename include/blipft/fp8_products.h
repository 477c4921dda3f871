// Fp8Products: which matrices of a model are multiplied in fp8, and their codes in the course of a pass.
//
// The products of a layer y = x w^T take x and w as f8e4m3; its gradients take dy as f8e5m2 or f8e4m3. Scales are those of
// the tensor as it is at that moment (current scaling, one for a tensor: Fp8Cast), so that a pass depends on nothing that
// was there before it. LinearLayer makes and uses the codes; this decides, and holds those of weights that stay.
//
// A weight does not change within a step: codes that are kept are made at its first use there, in both layouts, and serve
// all micro-batches and recomputations. Of those that are not kept, each use makes the layout that it needs. The codes of a
// frozen weight that is stored in fp8 are taken from where it is stored: of these the transposed layout alone is made.
//
// Of an input x whose bits backward would make again, the transposed codes may stay from forward, or from the recomputation, for
// the weight's gradient (Fp8Settings::keep_inputs): x is then neither kept, made nor cast again.
//
// Each factor of each matrix has a word for the largest magnitude of its tensor in a micro-batch, a weight's for that of the
// step. One zeroing makes all of them ready. A magnitude is found at most once: by whoever writes the tensor, if it asks for the
// word, else by the first cast; later casts of the same tensor, for backward or in a recomputation, are given it. Where a
// matrix meets several tensors in a micro-batch the word is the first one's, and the others' casts find their own.
//
// In a step the casts note the largest magnitude of each factor of each matrix, and with Fp8Settings::counts how many of its
// elements became zero: x of every micro-batch's forward, not of recomputations; w once, where it is cast; dy of every
// backward.
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

/// Of y = x w^T: what the casts of a step tell apart.
enum class Fp8Factor { x, w, dy };
constexpr int64_t kFp8Factors = 3;
/// "x", "w", "dy"
const char* fp8_factor_name(Fp8Factor factor);

/// What the casts of a factor found in a step.
struct Fp8Found {
  float amax = 0;                          ///< not finite where an element is not
  int64_t counts[kFp8Counts] = {};         ///< zeros where they are not counted
};

struct Fp8Settings {
  DType gradients = DType::f8e4m3;
  /// A product saves m n k operations and casts about m k + m n + n k elements: layers with in * out / (in + out) below
  /// this gain nothing.
  int64_t least_size = 1300;
  std::vector<std::string> excluded;       ///< ends of modules' names
  int64_t kept_bytes = 0;                  ///< of weights' codes that stay over a step
  bool counts = false;                     ///< casts of steps count: Fp8Cast::counts
  /// Whether UnitAccess::fp8_codes() gives the unit's matrix at this offset; null: none is stored so.
  std::function<bool(const Unit& unit, int64_t weight)> stored;
  bool keep_inputs = false;                ///< codes of inputs stay for backward, one byte an element
};

/// A matrix in one or both layouts.
struct Fp8Codes {
  Fp8Matrix codes, transposed;
  std::array<Tensor, 3> taken;             ///< what was taken from the arena for them; those that are absent were not
};
/// f32 words of a tensor that is cast: amax, and the scale at kScaleWord.
constexpr int64_t kFp8Words = 8, kScaleWord = 4;
enum class Fp8Layouts { codes, transposed, both };
/// What is known of a tensor that is cast as a matrix's factor.
enum class Fp8Seen {
  never,                                   ///< it is cast for the first time in this micro-batch: its magnitude is noted
  same,                                    ///< it has the bits of the one that was cast as `never`
  alike,                                   ///< that one up to rounding: made again in another way
};
/// Where a cast adds what it found: Fp8Cast's; absent: nowhere.
struct Fp8Notes {
  Tensor largest, counts;
};
/// Calls `to` with each tensor that was taken.
template <class F>
void each_taken(const Fp8Codes& made, F to) {
  for (const Tensor& tensor : made.taken)
    if (tensor) to(tensor);
}

class Fp8Products {
 public:
  /// Why a matrix stays in the compute dtype.
  enum class Choice { fp8, small, odd, excluded };
  /// What the word of a factor holds: nothing; what the writer of the tensor, who has asked for it, finds; the magnitude of the
  /// tensor that was cast; that of the first of several tensors.
  enum class Word { unused, asked, known, of_several };
  /// Of codes of x that stay for backward: there are none; they are there; backward has them.
  enum class Input { none, kept, taken };
  struct Matrix {
    Choice choice = Choice::fp8;
    Tensor codes, transposed;              // [out, in], [in, out]; absent: not kept
    std::array<Word, kFp8Factors> words{};
    Input input = Input::none;
    Tensor input_codes;                    // [in, fp8_columns(M)], while they are kept
    bool fresh = false;                    // the codes are those of this pass
    int64_t number = -1;                   // among those in fp8: of its notes, and of names()
    bool noted = false;                    // the weight, in this pass
    bool stored = false;                   // in fp8: `transposed` alone is made
    int64_t bytes = 0;                     // of what there is to keep
  };
  /// Declares the memory of codes that are kept.
  Fp8Products(const std::vector<const Unit*>& units, Fp8Settings settings, Arena& arena);
  /// After Arena::commit.
  void bind(const Arena& arena);
  /// Weights may have changed. Nothing is noted, until begin_notes(); no word is ready, until begin_micro_batch().
  void begin_pass();
  /// Makes the words ready: those of x and dy, and before the first micro-batch of a pass those of weights. All casts of the
  /// micro-batch before are done in the order of `stream`. Without it each cast finds its own magnitude.
  void begin_micro_batch(Device& device, Stream stream);
  /// The pass is a step: from here on casts note what they find, which is zeroed here.
  void begin_notes(Device& device, Stream stream);
  /// Of a factor of the unit's matrix at `weight`; absent where nothing is noted.
  Fp8Notes notes(const Unit& unit, int64_t weight, Fp8Factor factor) const;
  /// The modules of each matrix in fp8, in the order in which forward comes to them: "model.layers.0.self_attn.q_proj, k_proj".
  const std::vector<std::string>& names() const { return names_; }
  /// f32 and i64 of names().size() * kFp8Factors: the notes of a step, the factors of a matrix one behind the other. Counts
  /// are absent where nothing is counted; both where no matrix is in fp8.
  const Tensor& largest() const { return largest_; }
  const Tensor& counts() const { return counts_; }
  /// "x of model.layers.0.mlp.down_proj", the first of these largest magnitudes that is not finite, as forward and then
  /// backward come to them; "" where all are.
  std::string first_not_finite(const float* largest) const;

  /// Never the head's matrix, which is no layer's (Unit::matrices).
  bool takes(const Unit& unit, int64_t weight) const;
  /// For whoever writes x or dy of the unit's matrix at `weight`, which is cast next as such: f32 [1], zero by then in the main
  /// stream, to raise to the largest magnitude of what it writes (Fp8Magnitude). Absent: not wanted.
  Tensor amax(const Unit& unit, int64_t weight, Fp8Factor factor);
  /// `tensor`, x or dy of the unit's matrix at `weight`, as codes in memory that is taken from the arena.
  Fp8Codes cast(const StepContext& context, const Unit& unit, int64_t weight, Fp8Factor factor, const MatrixView& tensor,
                Fp8Seen seen, Fp8Layouts layouts, Stream stream);
  /// The same of an input x in the main stream, as codes. Where inputs are kept its transposed ones stay until take_input(), if it
  /// is the matrix's only input of the micro-batch.
  Fp8Codes cast_to_keep(const StepContext& context, const Unit& unit, int64_t weight, const MatrixView& x, Fp8Seen seen);
  /// Whether the codes of the matrix's input are kept, or were in this micro-batch: whoever made x need not make it again.
  bool keeps_input(const Unit& unit, int64_t weight) const;
  /// The transposed codes that are kept, which are the caller's to give back; none: they were not.
  Fp8Codes take_input(const Unit& unit, int64_t weight);
  /// The codes of the unit's matrix `w` [out, in] at `weight`, made in the main stream where they are not there, in the layout
  /// that is asked for at least. `stored`: its codes as they are stored, if they are; `w` is not read then.
  Fp8Codes weight(const StepContext& context, const Unit& unit, int64_t weight, const Tensor& w, const Fp8Matrix& stored,
                  Fp8Layouts layout);

  /// By unit and offset of the weight.
  const std::map<std::pair<int64_t, int64_t>, Matrix>& matrices() const { return matrices_; }
  int64_t kept_bytes() const { return kept_bytes_; }

 private:
  static Fp8Codes of_stored(const StepContext& context, Matrix& kept, const Fp8Matrix& stored, Fp8Layouts layout);
  Tensor words(const Matrix& matrix, Fp8Factor factor) const;
  /// What a cast does with the factor's word; none: it takes one of its own.
  std::optional<Fp8Magnitude> use_word(Matrix& matrix, Fp8Factor factor, Fp8Seen seen) const;
  Fp8Codes cast(const StepContext& context, Matrix& matrix, Fp8Factor factor, const MatrixView& tensor, Fp8Seen seen,
                Fp8Layouts layouts, Stream stream, const Fp8Notes& notes) const;
  Fp8Settings settings_;
  std::map<std::pair<int64_t, int64_t>, Matrix> matrices_;
  int64_t kept_bytes_ = 0;
  std::vector<std::string> names_;
  Tensor largest_, counts_;
  Tensor words_;                           // f32 [kFp8Factors, matrices, kFp8Words]: weights' first
  bool noting_ = false, ready_ = false;
};

}  // namespace blipft
