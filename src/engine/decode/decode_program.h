// DecodeProgram: all work that a rank enqueues to generate texts: passes that read prompts (prefill), and passes that
// decode one token in every slot. Both are planned by the dry run and captured as graphs. The host does not wait
// between tokens.
//
// A slot is an index in the batch in which one text is generated (with beams, one beam of it). Prompts are packed like
// a micro-batch, and their keys and values go to the cache; a decode pass reads the last token of every slot. The
// caller assigns texts to slots. The result in a slot depends only on its own text.
//
// If a model has an encoder, the encoder reads the prompts, and the keys and values of its output go to a second cache.
// The text in a slot then begins with the decoder's start id and contains no ids of its prompt.
//
// Dimensions: S slots, B beams of a text, G prompts read in one pass, L maximum ids of a text, Q prefix rows before its
// first id, C = Q + L cache positions of a slot; P maximum encoder rows of a prompt.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "blipft/batch.h"
#include "blipft/decode_ops.h"
#include "blipft/model.h"
#include "blipft/strategy.h"
#include "ops/host_memory.h"
#include "trace/span_recorder.h"

namespace blipft {

/// The shape of a decode program, and the rules by which it chooses tokens.
struct DecodeProgramSettings {
  int64_t slots = 1;                       ///< S, a multiple of `beams`
  int64_t beams = 1;                       ///< B; 1: no beam search
  int64_t prompts = 1;                     ///< G
  int64_t max_ids = 0;                    ///< L
  TextShape prompt_text;                   ///< packed shape of G prompts. The sources of any G prompts fit
  TokenRules rules;                        ///< without the tensor of rules.ends; see `ends`
  std::vector<int32_t> ends;               ///< ids of tokens that end a text
  float length_penalty = 1;                ///< for beam search
  EarlyStopping early_stopping = EarlyStopping::no;
  bool scores = false;                     ///< true if texts are scored too
  bool keeps_units = false;                ///< true if begin() gathers all units and they stay gathered
};

/// The objects that a decode program uses. It owns none of them.
struct DecodeParts {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Arena* arena = nullptr;
  Model* model = nullptr;
  Strategy* strategy = nullptr;
  PixelStatistics pixel_statistics;
  DType compute = DType::f32;
  int32_t pad_id = 0;                      ///< fills the rows after prompts
  bool graphs = true;                      ///< true if passes are captured
  bool own_workspace = false;              ///< true if no step program sets the workspace of the ops
  SpanRecorder* spans = nullptr;           ///< optional: gets the pass of the strategy's collectives
  StepObserver* observer = nullptr;        ///< optional
};

/// A text to generate: its prompt and its slot.
struct NewText {
  std::vector<int32_t> ids;                ///< ids of the prompt; at least one
  int64_t key = 0;                         ///< number of the text; part of the key of random draws
  int64_t limit = 0;                       ///< number of ids at which it ends, including ids_before(); at most L
  int64_t slot = 0;                        ///< first slot of the text; with beams a multiple of B
  const uint8_t* pixels = nullptr;         ///< u8 [P, P, 3]: its picture, if the model reads one (here P: picture size)
  std::vector<int32_t> instruction = {};   ///< ids, if the model reads an instruction
  std::vector<PictureSegment> pictures = {};  ///< with their patches, if the model reads pictures in texts
};

/// The likelihood of the label tokens of a text.
struct TextLikelihood {
  double log_likelihood = 0;               ///< sum over its label tokens, natural logarithm
  int64_t tokens = 0;                      ///< number of its label tokens
};

/// The state of all slots after a pass, in host memory that stays valid until the second read_back() after its own.
struct DecodeView {
  int64_t max_ids = 0;
  std::span<const int32_t> ids, lengths, done;  ///< [S, L], [S], [S] (DecodeEnd)
  std::span<const float> log_probs;             ///< [S, L]: of generated ids; without beams
  std::span<const int32_t> finished_ids, finished_lengths;  ///< with beams: [S / B, B, L], [S / B, B], best first
  std::span<const float> finished_scores;       ///< [S / B, B]
};

class DecodeProgram {
 public:
  DecodeProgram(const DecodeParts& parts, DecodeProgramSettings settings);
  ~DecodeProgram();

  /// Dry run: records all passes.
  void record_passes();
  /// Returns the names of all passes in the arena.
  std::vector<std::string> passes() const;
  /// To be called after Arena::commit.
  void bind();

  /// Empties all slots. To be called before the first text, and after any pass of another program. All ranks that share
  /// the units must call it.
  void begin();
  /// Reads at most G prompts, whose rows must fit the prompt shape, and chooses the first token of each. Their slots
  /// must be free. Without texts, the rank only joins the collectives of the other ranks' pass.
  void read_prompts(std::span<const NewText> texts);
  /// Returns true if `prompts` prompts with `ids` ids in all, including instructions, fit in one pass.
  bool fits(int64_t prompts, int64_t ids) const;
  /// Returns the number of ids in a slot before the first new one, for a prompt of `prompt` ids.
  int64_t ids_before(int64_t prompt) const { return inputs_.has_source() ? 1 : prompt; }
  /// Enqueues `tokens` decode passes: each adds one token to every slot.
  void decode(int64_t tokens);
  /// Scores at most G texts, which must fit the prompt shape, and waits for the result. Needs settings().scores. Keeps
  /// the cache.
  std::vector<TextLikelihood> score(std::span<const BatchSample> texts, std::span<const uint8_t* const> pixels);
  /// Ends the text in a slot, after the host has found its end.
  void stop(int64_t slot);
  /// Enqueues a copy of the state to the host. At most kViews copies may be pending.
  void read_back();
  /// Waits for the oldest pending copy and returns it.
  DecodeView view();
  static constexpr int64_t kViews = 2;

  const DecodeProgramSettings& settings() const { return settings_; }
  int64_t vocabulary() const { return inputs_.text.vocabulary; }
  /// Returns the bytes of all keys and values.
  int64_t cache_bytes() const;

 private:
  enum class Pass { scores, prompts, token, units };  // the first three: one evaluation of the strategy each
  static const char* pass_name(Pass pass);
  class Block;                             // consecutive tensors in a block of memory
  struct State;                            // tensors on the device that passes keep
  struct Readback;                         // page-locked memory of one view
  struct Program {
    std::unique_ptr<Graph> graph;
    bool warm = false;                     // has run once without a graph
  };
  int64_t positions() const { return inputs_.text.first_rows + settings_.max_ids; }
  int64_t memory_positions() const { return inputs_.source.first_rows + settings_.prompt_text.source_tokens; }  // P
  int64_t texts() const { return settings_.slots / settings_.beams; }
  void lay_out(Block& data, Block& cache, State& state) const;
  void run(Pass pass);
  void enqueue(Pass pass);
  void enqueue_prompts(const StepContext& context);
  void enqueue_token(const StepContext& context);
  void enqueue_scores(const StepContext& context);
  bool has(Pass pass) const;
  void choose(const Tensor& logits, bool first);
  void write_prompts(std::span<const NewText> texts);
  void write_batch(std::vector<BatchSample>& samples, std::span<const uint8_t* const> pixels);
  void write_memory_rows(std::span<const NewText> texts, const MicroBatch& batch, State& host) const;
  void begin_texts(const MicroBatch& batch);
  void begin_memory();
  CacheCall cache_call() const;

  DecodeParts parts_;
  DecodeProgramSettings settings_;
  ModelInputs inputs_;
  BatchLayout layout_;                     // of a pass that reads prompts
  int64_t data_bytes_ = 0, cache_bytes_ = 0;
  Tensor workspace_;
  std::unique_ptr<State> state_;           // at the arena's addresses; in dry runs at fictitious ones
  std::unique_ptr<HostMemory> host_block_;
  std::vector<std::unique_ptr<Readback>> views_;
  uint64_t sent_ = 0, seen_ = 0;           // number of views
  Program programs_[4];
  Event forked_, joined_, copied_;
};

}  // namespace blipft
