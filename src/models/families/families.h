// The table of model families. Each family is one function in a separate file; only this table names all of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blipft/family.h"
#include "models/families/decoder/decoder.h"

namespace blipft {

class JsonFields;

struct Family {
  FamilySpec spec;
  /// Reads and checks config.json of a text decoder; null for other models.
  DecoderConfig (*read_decoder)(const JsonFields& fields) = nullptr;
  /// Makes the model from config.json; null: make_decoder() makes it from what read_decoder returns.
  std::unique_ptr<Model> (*make)(const JsonFields& fields, const ModelSettings& settings) = nullptr;
};

namespace families {

Family blip2();
Family instructblip();
Family qwen2_5_vl();
Family qwen3_vl();
Family t5();
Family llama();
Family mistral();
Family qwen2();
Family qwen3();
Family smollm3();
Family phi3();
Family olmo2();
Family granite();
Family glm4();
Family gemma2();
Family gemma3_text();
Family gemma3();

}  // namespace families

inline std::vector<Family> all_families() {
  using namespace families;
  return {blip2(), instructblip(), qwen2_5_vl(), qwen3_vl(), t5(), llama(), mistral(), qwen2(), qwen3(), smollm3(), phi3(),
          olmo2(), granite(), glm4(), gemma2(), gemma3_text(), gemma3()};
}

/// Returns the spec of a text decoder with the transformers class `class_name` ("LlamaForCausalLM") in the module named
/// after `model_type`.
FamilySpec decoder_spec(const std::string& model_type, const std::string& class_name);

/// Reads config.json of a decoder of texts of any family. Throws UserError.
DecoderConfig read_decoder_config(const JsonFields& fields);

}  // namespace blipft
