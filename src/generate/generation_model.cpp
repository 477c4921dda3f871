// Reading the model that generates; see generation_model.h.
#include "generate/generation_model.h"

#include "blipft/error.h"
#include "engine/run_data.h"
#include "engine/settings.h"
#include "weights/adapter_files.h"

namespace blipft {

ModelSettings untrained(const Config& config) {
  ModelSettings settings = model_settings(config);
  settings.trained = false;
  settings.checkpointing = {};
  settings.dropout = false;
  settings.adapter.dropout = 0;
  return settings;
}

namespace {

std::unique_ptr<Model> model_of(const WeightSource& source) {
  try {
    return RunModel(source.config).make(source.config, untrained(source.config));
  } catch (const UserError& error) {
    if (source.missing.empty()) throw;
    throw UserError(concat(error.what(), "\nmodel.path is read since ", source.missing,
                           "; if a run has saved one elsewhere, give output.path=ITS_FOLDER"));
  }
}

}  // namespace

GenerationModel::GenerationModel(const GenerationSource& requested, bool planned)
    : source(requested.weights), model(model_of(source)), inputs(model->inputs()) {
  const std::string& folder = config().model.path;
  BLIPFT_USER_CHECK(!model->cache_widths().empty(), folder, ": ", model->description(), " generates no text");
  check_adapters({config().model, config().adapter, config()}, model->units());
  if (!planned || has_tokenizer(folder)) {
    tokenizer = load_model_tokenizer(folder);
    instructions = open_instruction_reader(folder, inputs.instruction, inputs.instruction.max_tokens);
  }
  settings = generate_settings(requested.config, folder, tokenizer.get(), inputs);
  settings.ignore_before = requested.config.evaluate.ignore_before;
}

}  // namespace blipft
