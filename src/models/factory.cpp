// The table of model families, by config.json's model_type.
#include <filesystem>

#include "blipft/model_class.h"
#include "io/json_fields.h"
#include "models/families/picture/blip2.h"
#include "models/families/picture/instructblip.h"
#include "models/families/text/gemma.h"
#include "models/families/text/llama.h"
#include "models/families/text/t5.h"

namespace blipft {

namespace {

struct Family {
  const char* model_type;
  std::unique_ptr<Model> (*make)(const std::string&, const ModelSettings&);
  ModelClass saved_as;
};

// `file`: the model's config.json.
const Family& family_of(const std::string& model_directory, const std::string& file) {
  static const Family kTable[] = {
      {"blip-2", make_blip2, {"Blip2ForConditionalGeneration", "transformers.models.blip_2.modeling_blip_2", false}},
      {"instructblip", make_instructblip,
       {"InstructBlipForConditionalGeneration", "transformers.models.instructblip.modeling_instructblip", false}},
      {"t5", make_t5, {"T5ForConditionalGeneration", "transformers.models.t5.modeling_t5", false, true}},
      {"llama", make_llama, {"LlamaForCausalLM", "transformers.models.llama.modeling_llama", true}},
      {"mistral", make_llama, {"MistralForCausalLM", "transformers.models.mistral.modeling_mistral", true}},
      {"qwen2", make_llama, {"Qwen2ForCausalLM", "transformers.models.qwen2.modeling_qwen2", true}},
      {"qwen3", make_llama, {"Qwen3ForCausalLM", "transformers.models.qwen3.modeling_qwen3", true}},
      {"smollm3", make_llama, {"SmolLM3ForCausalLM", "transformers.models.smollm3.modeling_smollm3", true}},
      {"phi3", make_llama, {"Phi3ForCausalLM", "transformers.models.phi3.modeling_phi3", true}},
      {"olmo2", make_llama, {"Olmo2ForCausalLM", "transformers.models.olmo2.modeling_olmo2", true}},
      {"gemma2", make_gemma, {"Gemma2ForCausalLM", "transformers.models.gemma2.modeling_gemma2", true}},
      {"gemma3_text", make_gemma, {"Gemma3ForCausalLM", "transformers.models.gemma3.modeling_gemma3", true}},
      {"gemma3", make_gemma,
       {"Gemma3ForConditionalGeneration", "transformers.models.gemma3.modeling_gemma3", true, false,
        {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."}}}};
  std::error_code ignored;
  BLIPFT_USER_CHECK(
      std::filesystem::is_directory(model_directory, ignored), "model.path: found \"", model_directory,
      "\", which is not a directory; expected one that save_pretrained wrote or that was downloaded from the hub");
  const nlohmann::json root = io::read_json_file(file);
  const std::string type = JsonFields(root, file).get<std::string>("model_type", "");
  std::string known;
  for (const Family& family : kTable) {
    if (type == family.model_type) return family;
    known += concat(known.empty() ? "" : ", ", family.model_type);
  }
  throw UserError(concat(file, ": model_type: found \"", brief(type), "\", known are ", known));
}

}  // namespace

std::unique_ptr<Model> make_model(const std::string& model_directory, const ModelSettings& settings) {
  const std::string file = model_directory + "/config.json";
  return family_of(model_directory, file).make(file, settings);
}

ModelClass model_class(const std::string& model_directory) {
  return family_of(model_directory, model_directory + "/config.json").saved_as;
}

}  // namespace blipft
