// Weights between model directories and the shards that this rank holds.
#pragma once

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

/// Scratch bytes that loading and saving need.
int64_t weights_scratch_bytes(const Model& model, const ParameterStore& store, const Strategy& strategy,
                              DType save_dtype);

/// The dtype that output.save_dtype stands for.
DType save_dtype(const std::string& name, const PrecisionTypes& types);

/// Fills this rank's shards (and master weights), reading only the ranges it keeps, with `threads` reading threads.
void load_weights(const WeightContext& context, const SafetensorsReader& reader, int64_t threads);
/// Random weights by each parameter's Init: the same numbers for every strategy and world size.
void init_weights(const WeightContext& context, uint64_t seed);
/// Writes the model in Hugging Face form to `directory` (rank 0 writes, all ranks take part). `dtype` f32 or bf16.
/// Tokenizer, preprocessor and config files are copied from `source`.
void save_weights(const WeightContext& context, const World& world, const std::string& directory, DType dtype,
                  const std::string& source);

}  // namespace blipft
