// Weights between model directories and the shards that this rank holds.
#pragma once

#include <optional>
#include <string>

#include "blipft/checkpoint.h"
#include "blipft/comm.h"
#include "blipft/config.h"
#include "blipft/strategy.h"
#include "run/stored_tensors.h"

namespace blipft {

struct WeightContext {
  Units units;
  ParameterStore* store = nullptr;
  Strategy* strategy = nullptr;
  Device* device = nullptr;
  Ops* ops = nullptr;
  Tensor scratch;                          // u8 device memory that is free to use (Arena::scratch)
};

/// Scratch bytes that loading takes, and initialising.
int64_t loading_scratch_bytes();
int64_t init_scratch_bytes();
/// Fills this rank's shards (and master weights) but for fresh parameters, reading only the ranges it keeps, with
/// `threads` reading threads.
void load_weights(const WeightContext& context, const SafetensorsReader& reader, int64_t threads);
/// Which parameters init_weights() fills.
enum class Filled { all, fresh };
/// Weights by each parameter's Init: the same numbers for every strategy and world size, whichever of them are filled.
void init_weights(const WeightContext& context, uint64_t seed, Filled filled = Filled::all);

/// What of a model is saved, and with which dtypes.
struct SaveSettings {
  DType trained = DType::f32;
  /// Of tensors that were not trained. Absent: as the checkpoint stores them that they were read from, bit for bit;
  /// those that come from none as they are held.
  std::optional<DType> frozen;
  bool trained_alone = false;
  bool pretrained = true;                  ///< the weights came from a checkpoint, but for fresh ones
  static SaveSettings of(const Config& config);
};

struct SaveJob {
  std::string directory;                   // made, or replaced where it is an older model
  std::string source;                      // model directory: its config and tokenizer files are taken over
  SaveSettings settings;
  const SafetensorsReader* checkpoint = nullptr;  // where the weights came from, if from one
};

/// Scratch bytes that saving takes.
int64_t saving_scratch_bytes(const Units& units, const ParameterStore& store, const Strategy& strategy,
                             const SaveSettings& settings);
/// Writes tensors, config and tokenizer files in Hugging Face form (rank 0 writes, all ranks take part). What was not
/// trained is copied from the checkpoint, in pieces.
void save_weights(const WeightContext& context, const World& world, const SaveJob& job);

}  // namespace blipft
