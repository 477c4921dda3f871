// Saving: writes the weights that the ranks hold as shards to folders in the formats of Hugging Face and PEFT.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agreement/disk_room.h"
#include "blipft/run_settings.h"
#include "weights/weights.h"

namespace blipft {

/// The tensors of a model that are saved, and their dtypes.
struct SaveSettings {
  /// all: every tensor, with adapters merged into their weights; a tied weight with a merged adapter is saved
  /// separately.
  /// trained: only trained tensors, without adapters. adapters: only adapters, in PEFT's format.
  enum class What { all, trained, adapters } what = What::all;
  DType trained = DType::f32;
  /// The dtype of frozen tensors. nullopt: they are copied bit for bit from the checkpoint that they were loaded from,
  /// or saved in the dtype of the store if they come from none.
  std::optional<DType> frozen;
  bool pretrained = true;                  ///< true if weights come from a checkpoint, except fresh ones
  float adapter_scale = 1;                 ///< scale of merged adapters
  /// Returns what a run with output.save_model saves, in the order of OutputNames::saved.
  static std::vector<SaveSettings> of(const RunSettings& config);
};

struct SaveJob {
  std::string directory;                   // created, or replaced if it is an older one of the same kind
  std::string source;                      // model folder: its config and tokenizer files are copied
  SaveSettings settings;
  const SafetensorsReader* checkpoint = nullptr;  // source of the weights; may be null
  std::string adapter_config;              // adapter_config.json, with What::adapters
  std::string chat_template = {};          // chat_template.jinja; empty: that of `source`, if it has one
  ModelOrigin origin = {};
};

/// Returns the bytes of scratch memory that saving needs.
int64_t saving_scratch_bytes(const Units& units, const ParameterStore& store, const Strategy& strategy,
                             const SaveSettings& settings);
/// Returns the bytes of the saved tensors, plus kSmallFilesBytes. `checkpoint`: source of the weights; null: they are
/// random. `source`: as SaveJob::source.
int64_t saved_bytes(const Units& units, const ParameterStore& store, const SaveSettings& settings,
                    const SafetensorsReader* checkpoint, const std::string& source);
/// Returns the folders that a run saves at its end, if any, and their bytes.
std::vector<FileToWrite> files_to_save(const RunSettings& config, const Units& units, const ParameterStore& store);
/// Throws UserError if the run saves a whole model with random initial weights: the other tensors of the folder
/// (FamilySpec::kept_tensors), which a saved model contains unchanged, would be missing.
void check_saved_parts(const RunSettings& config);
/// Writes tensors, config and tokenizer files. All ranks must call it; rank 0 writes. Frozen tensors are copied from
/// the checkpoint in pieces. Returns the folder: SaveJob::directory, or a folder next to it if that name is in use (see
/// CheckpointWriter::finish()).
std::string save_weights(const WeightContext& context, const World& world, const SaveJob& job);

}  // namespace blipft
