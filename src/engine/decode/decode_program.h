// DecodeProgram: everything a rank enqueues to generate texts, beside the step program: reading prompts, and steps of one
// token a slot. Both are passes of the arena that the dry run plans, and captured graphs; no host is between tokens.
//
// A slot is a place in the batch in which one text grows (with beams, one beam of it). Prompts are read packed, as a
// micro-batch is, and leave keys and values in the cache; a step reads the last token of every slot. Which texts are where
// is the caller's to say; what happens in a slot depends on its own text alone.
//
// Where a model has an encoder, it reads the prompts, and leaves keys and values of what it made of them in a cache of their
// own; a text in a slot begins with the decoder's start and has none of its prompt's ids.
//
// Dimension legend: S slots, B beams of a text, G prompts that are read at once, L most ids of a text, Q rows before its
// first id, C = Q + L places of a slot in the cache; P rows of an encoder that a prompt takes at most.
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

/// What generation needs room for, and how it chooses tokens.
struct DecodeProgramSettings {
  int64_t slots = 1;                       ///< S, a multiple of `beams`
  int64_t beams = 1;                       ///< B; 1: no beam search
  int64_t prompts = 1;                     ///< G
  int64_t max_ids = 0;                    ///< L
  TextShape prompt_text;                   ///< of a reading of G prompts; packed. Any G of them fit its sources
  TokenRules rules;                        ///< but for its tensor: ends
  std::vector<int32_t> ends;               ///< ids that end a text
  float length_penalty = 1;                ///< of beams
  EarlyStopping early_stopping = EarlyStopping::no;
  bool scores = false;                     ///< texts are scored, too
  bool keeps_units = false;                ///< begin() gathers all units of the model, and they stay beside the cache
};

/// What the decode program works with; nothing here is owned.
struct DecodeParts {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Arena* arena = nullptr;
  Model* model = nullptr;
  Strategy* strategy = nullptr;
  PixelStatistics pixel_statistics;
  DType compute = DType::f32;
  int32_t pad_id = 0;                      ///< stands behind prompts
  bool graphs = true;                      ///< passes are captured
  bool own_workspace = false;              ///< there is no step program that gives the ops theirs
  SpanRecorder* spans = nullptr;           ///< optional: of the strategy, which is told what pass its collectives are of
  StepObserver* observer = nullptr;        ///< optional
};

/// A text that begins: what is read of it, and where it grows.
struct NewText {
  std::vector<int32_t> ids;                ///< of its prompt; at least one
  int64_t key = 0;                         ///< its number, which keys random draws
  int64_t limit = 0;                       ///< ids of its slot at which it ends, ids_before() included; at most L
  int64_t slot = 0;                        ///< its first one; with beams a multiple of B
  const uint8_t* pixels = nullptr;         ///< u8 [P, P, 3] of its picture, where the model reads one
  std::vector<int32_t> instruction = {};   ///< where the model reads one
};

/// How likely the learnt tokens of a text are.
struct TextLikelihood {
  double log_likelihood = 0;               ///< sum over its learnt tokens, natural logarithm
  int64_t tokens = 0;                      ///< so many
};

/// The state of all slots after a step, in host memory that holds until the next step but one is read back.
struct DecodeView {
  int64_t max_ids = 0;
  std::span<const int32_t> ids, lengths, done;  ///< [S, L], [S], [S] (DecodeEnd)
  std::span<const float> log_probs;             ///< [S, L], of generated ids; without beams
  std::span<const int32_t> finished_ids, finished_lengths;  ///< [S / B, B, L] and [S / B, B]: best first; with beams
  std::span<const float> finished_scores;       ///< [S / B, B]
};

class DecodeProgram {
 public:
  DecodeProgram(const DecodeParts& parts, DecodeProgramSettings settings);
  ~DecodeProgram();

  /// Dry run: records all passes.
  void record_passes();
  /// Their names in the arena.
  std::vector<std::string> passes() const;
  /// After Arena::commit.
  void bind();

  /// Empties all slots: to be called before the first text, and after any pass of another program. By all ranks that units
  /// are gathered from.
  void begin();
  /// Reads at most G prompts, whose rows fit the prompt shape, and chooses the first token of each. Slots must be free.
  /// None: takes part in the other ranks' reading.
  void read_prompts(std::span<const NewText> texts);
  /// Whether so many prompts of so many ids in all, those of instructions as well, can be read at once.
  bool fits(int64_t prompts, int64_t ids) const;
  /// Ids that a slot has before the first new one, of a prompt of so many.
  int64_t ids_before(int64_t prompt) const { return inputs_.has_source() ? 1 : prompt; }
  /// Enqueues so many tokens of every slot.
  void decode(int64_t tokens);
  /// Scores at most G texts, which fit the prompt shape; the cache stays. Waits for the result. With settings().scores.
  std::vector<TextLikelihood> score(std::span<const BatchSample> texts, std::span<const uint8_t* const> pixels);
  /// Ends the text in a slot where the host has seen its end.
  void stop(int64_t slot);
  /// Enqueues a copy of the state to the host; at most kViews may be under way.
  void read_back();
  /// Waits for the oldest of them.
  DecodeView view();
  static constexpr int64_t kViews = 2;

  const DecodeProgramSettings& settings() const { return settings_; }
  int64_t vocabulary() const { return inputs_.vocabulary; }
  /// Bytes of keys and values.
  int64_t cache_bytes() const;

 private:
  enum class Pass { scores, prompts, token, units };  // the first three an evaluation of the strategy each
  static const char* pass_name(Pass pass);
  class Block;                             // tensors laid out one after the other in a block
  struct State;                            // what the passes keep: tensors on the device
  struct Readback;                         // page-locked memory of one view
  struct Program {
    std::unique_ptr<Graph> graph;
    bool warm = false;                     // has run once without a graph
  };
  int64_t places() const { return inputs_.text_prefix() + settings_.max_ids; }
  int64_t memory_places() const { return inputs_.prefix_rows + settings_.prompt_text.source_tokens; }  // P
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
  BatchLayout layout_;                     // of a reading of prompts
  int64_t data_bytes_ = 0, cache_bytes_ = 0;
  Tensor workspace_;
  std::unique_ptr<State> state_;           // at the arena's addresses; while planning at fictitious ones
  std::unique_ptr<HostMemory> host_block_;
  std::vector<std::unique_ptr<Readback>> views_;
  uint64_t sent_ = 0, seen_ = 0;           // views
  Program programs_[4];
  Event forked_, joined_, taken_;
};

}  // namespace blipft
