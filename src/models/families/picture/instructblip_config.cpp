// Reads config.json of InstructBLIP. Defaults are those of transformers' configuration classes.
#include "models/families/picture/instructblip_config.h"

#include "io/json_fields.h"
#include "models/families/picture/blip2_config.h"
#include "models/families/text/llama.h"

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

DecoderConfig read_text(const JsonFields& fields, int64_t queries) {
  DecoderConfig config = read_llama(fields);
  BLIPFT_USER_CHECK(config.max_text_tokens > queries + 1, fields.file(), ": ", fields.prefix(),
                    "max_position_embeddings: found ", config.max_text_tokens, ", expected more than num_query_tokens, ", queries,
                    ", and one");
  return config;
}

}  // namespace

BlipConfig read_instructblip(const JsonFields& fields) {
  const bool encodes = has_encoder(fields, "llama");
  BlipConfig config = read_blip(fields);
  config.family = encodes ? "instructblip-t5" : "instructblip";
  config.qformer.instruction = read_instruction(fields.section("qformer_config"));
  const JsonFields text = fields.section("text_config");
  if (encodes) config.language = T5Config::read(text);
  else config.language = read_text(text, config.qformer.queries);
  return config;
}

}  // namespace blipft
