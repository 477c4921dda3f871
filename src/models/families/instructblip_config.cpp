// Reading config.json of InstructBLIP. Defaults are those of transformers' configuration classes.
#include "models/families/instructblip_config.h"

#include "io/json_fields.h"
#include "models/config_checks.h"
#include "models/families/blip2_config.h"

namespace blipft {

namespace {

InstructionShape read_instruction(const JsonFields& fields) {
  InstructionShape shape;
  shape.vocabulary = fields.rows("vocab_size", 30522);
  shape.positions = fields.rows("max_position_embeddings", 512);
  shape.padding_id = fields.get<int64_t>("pad_token_id", fields.is_null("pad_token_id") ? -1 : 0);
  fields.only<std::string>("position_embedding_type", "absolute");
  fields.only<std::string>("model_type", "instructblip_qformer");
  return shape;
}

LlamaConfig read_text(const JsonFields& fields, int64_t queries) {
  const std::string type = fields.get<std::string>("model_type", "opt");
  BLIPFT_USER_CHECK(type == "llama", fields.file(), ": ", fields.prefix(), "model_type: found \"", brief(type),
                    "\", supported is \"llama\"");
  LlamaConfig config = LlamaConfig::read(fields);
  BLIPFT_USER_CHECK(config.max_text_tokens > queries + 1, fields.file(), ": ", fields.prefix(),
                    "max_position_embeddings: found ", config.max_text_tokens, ", expected more than num_query_tokens, ", queries,
                    ", and one");
  config.max_text_tokens -= queries;
  return config;
}

}  // namespace

InstructBlipConfig InstructBlipConfig::read(const std::string& file) {
  const nlohmann::json root = io::read_json_file(file);
  const JsonFields fields(root, file);
  fields.only<bool>("use_decoder_only_language_model", true);
  for (const char* part : {"vision_config", "qformer_config"}) refuse_quantised(fields.section(part));
  refuse_quantised(fields);
  InstructBlipConfig config;
  config.vision = read_vision(fields.section("vision_config"));
  const JsonFields qformer = fields.section("qformer_config");
  config.qformer = read_qformer(qformer, config.vision.hidden, fields.positive("num_query_tokens", 32));
  config.qformer.instruction = read_instruction(qformer);
  config.text = read_text(fields.section("text_config"), config.qformer.queries);
  return config;
}

}  // namespace blipft
