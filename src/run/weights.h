// Weights between model directories and the shards that this rank holds.
#pragma once

#include <optional>
#include <string>

#include "blipft/checkpoint.h"
#include "blipft/comm.h"
#include "blipft/model.h"
#include "blipft/strategy.h"
#include "run/stored_tensors.h"

namespace blipft {

struct WeightContext {
  const Model* model = nullptr;
  ParameterStore* store = nullptr;
  Strategy* strategy = nullptr;
  Device* device = nullptr;
  Ops* ops = nullptr;
  Tensor scratch;                          // u8 device memory that is free to use (Arena::scratch)
};

/// Scratch bytes that loading takes, and initialising.
int64_t loading_scratch_bytes();
int64_t init_scratch_bytes();
/// Fills this rank's shards (and master weights), reading only the ranges it keeps, with `threads` reading threads.
void load_weights(const WeightContext& context, const SafetensorsReader& reader, int64_t threads);
/// Random weights by each parameter's Init: the same numbers for every strategy and world size.
void init_weights(const WeightContext& context, uint64_t seed);

/// The dtypes of a saved model's tensors.
struct SavedTypes {
  DType trained = DType::f32;
  /// Of tensors that were not trained. Absent: as the checkpoint stores them that they were read from, bit for bit;
  /// those that come from none as they are held.
  std::optional<DType> frozen;
  /// What output.save_dtype stands for.
  static SavedTypes of(const std::string& save_dtype, const PrecisionTypes& types);
};

struct SaveJob {
  std::string directory;                   // made, or replaced where it is an older model
  std::string source;                      // model directory: its config and tokenizer files are taken over
  SavedTypes types;
  const SafetensorsReader* checkpoint = nullptr;  // where the weights came from; null: from their Init
};

/// Scratch bytes that saving takes, of weights that came from a checkpoint or not.
int64_t saving_scratch_bytes(const Model& model, const ParameterStore& store, const Strategy& strategy,
                             const SavedTypes& types, bool from_checkpoint);
/// Writes the model in Hugging Face form (rank 0 writes, all ranks take part). What was not trained is copied from the
/// checkpoint, in pieces.
void save_weights(const WeightContext& context, const World& world, const SaveJob& job);

}  // namespace blipft
