// Weights from the shards that the ranks hold into folders of Hugging Face and PEFT form.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agreement/disk_room.h"
#include "blipft/config.h"
#include "weights/weights.h"

namespace blipft {

/// What of a model is saved, and with which dtypes.
struct SaveSettings {
  /// all: every tensor, adapters merged into the weights that they are added to, a tied one of which gets a key of its
  /// own then; trained: those alone that were trained
  /// (not adapters); adapters: these alone, in PEFT's form.
  enum class What { all, trained, adapters } what = What::all;
  DType trained = DType::f32;
  /// Of tensors that were not trained. Absent: as the checkpoint stores them that they were read from, bit for bit;
  /// those that come from none as they are held.
  std::optional<DType> frozen;
  bool pretrained = true;                  ///< the weights came from a checkpoint, but for fresh ones
  float adapter_scale = 1;                 ///< of merged adapters
  std::string folder() const { return what == What::adapters ? "adapter" : "model"; }  ///< under output.path
  /// What a run saves that saves its model, in this order.
  static std::vector<SaveSettings> of(const Config& config);
};

struct SaveJob {
  std::string directory;                   // made, or replaced where it is an older one of its kind
  std::string source;                      // model directory: its config and tokenizer files are taken over
  SaveSettings settings;
  const SafetensorsReader* checkpoint = nullptr;  // where the weights came from, if from one
  std::string adapter_config;              // adapter_config.json, with What::adapters
  ModelOrigin origin = {};
};

/// Scratch bytes that saving takes.
int64_t saving_scratch_bytes(const Units& units, const ParameterStore& store, const Strategy& strategy,
                             const SaveSettings& settings);
/// Bytes of the tensors that saving writes, and kSmallFilesBytes. `checkpoint`: where the weights come from, null: they are drawn.
/// `source`: SaveJob's.
int64_t saved_bytes(const Units& units, const ParameterStore& store, const SaveSettings& settings,
                    const SafetensorsReader* checkpoint, const std::string& source);
/// The folders that a run saves at its end, if any, and the bytes of their tensors.
std::vector<FileToWrite> files_to_save(const Config& config, const Units& units, const ParameterStore& store);
/// Writes tensors, config and tokenizer files (rank 0 writes, all ranks take part). What was not trained is copied from
/// the checkpoint, in pieces. Returns the folder: SaveJob::directory, or one beside it if that name was taken (see
/// CheckpointWriter::finish()).
std::string save_weights(const WeightContext& context, const World& world, const SaveJob& job);

}  // namespace blipft
