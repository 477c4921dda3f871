// Settings of generation; see generate_settings.h.
#include "engine/decode/generate_settings.h"

#include <algorithm>
#include <filesystem>

#include "io/json_fields.h"

namespace blipft {

namespace {

using nlohmann::json;

constexpr int64_t kMaxBeams = 32;         // the limit of BeamStep

// An unsupported key of generation_config.json and the value with which it has no effect. Other values change tokens:
// of all texts, only of sampled texts, or only in beam search.
struct Neutral {
  enum class Of { all, draws, beams };
  const char* key;
  json value;
  Of of = Of::all;
};

const std::vector<Neutral>& not_supported() {
  using Of = Neutral::Of;
  static const std::vector<Neutral> keys = {
      {"no_repeat_ngram_size", 0}, {"encoder_no_repeat_ngram_size", 0}, {"encoder_repetition_penalty", 1.0},
      {"bad_words_ids", nullptr}, {"suppress_tokens", nullptr}, {"begin_suppress_tokens", nullptr},
      {"forced_bos_token_id", nullptr}, {"forced_eos_token_id", nullptr}, {"sequence_bias", nullptr},
      {"num_beam_groups", 1}, {"diversity_penalty", 0.0}, {"penalty_alpha", 0}, {"guidance_scale", 1},
      {"constraints", nullptr}, {"force_words_ids", nullptr}, {"exponential_decay_length_penalty", nullptr},
      {"watermarking_config", nullptr}, {"token_healing", false}, {"dola_layers", nullptr}, {"low_memory", false},
      {"max_time", nullptr}, {"renormalize_logits", false, Of::beams},
      {"typical_p", 1.0, Of::draws}, {"epsilon_cutoff", 0.0, Of::draws}, {"eta_cutoff", 0.0, Of::draws},
      {"top_h", nullptr, Of::draws}};
  return keys;
}

bool is_neutral(const json& found, const json& value) {
  if (found.is_null() || found == value || found == false) return true;
  return found.is_structured() && found.empty();
}

void refuse_unknown(const json& object, const std::string& file, const GenerateSettings& settings) {
  for (const Neutral& neutral : not_supported()) {
    const auto found = object.find(neutral.key);
    const bool applies = neutral.of == Neutral::Of::all || (neutral.of == Neutral::Of::draws ? settings.rules.sample
                                                                                             : settings.beams > 1);
    if (found == object.end() || !applies) continue;
    BLIPFT_USER_CHECK(is_neutral(*found, neutral.value), file, ": ", neutral.key, ": found ",
                      io::brief(*found), ", which is not supported: the tokens would be others; remove it from the file");
  }
}

// Throws UserError for keys of generation_config.json that the run file must set or that contradict the model.
void refuse_unless_given(const json& object, const std::string& file, const EngineSettings& config, const ModelInputs& inputs) {
  const auto stops = object.find("stop_strings");
  const bool stop = stops != object.end() && !stops->is_null() && !stops->empty();
  BLIPFT_USER_CHECK(!stop || config.locations.count("generate.stop") > 0, file, ": stop_strings: found ", io::brief(*stops),
                    ", which is not read from this file; give these texts as generate.stop");
  const auto start = object.find("decoder_start_token_id");
  BLIPFT_USER_CHECK(!inputs.has_source() || start == object.end() || start->is_null() || *start == inputs.decoder_start, file,
                    ": decoder_start_token_id: found ", io::brief(*start), ", but the model is trained with ",
                    inputs.decoder_start, " (config.json); expected the same in both files");
}

// eos_token_id: one id or a list.
void add_ends(const json& object, const std::string& file, std::vector<int32_t>& ends) {
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return;
  const auto add = [&](const json& id) {
    BLIPFT_USER_CHECK(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kMaxRows, file,
                      ": eos_token_id: found ", io::brief(*found), ", expected an id or a list of ids");
    ends.push_back(id.get<int32_t>());
  };
  if (found->is_array()) std::for_each(found->begin(), found->end(), add);
  else add(*found);
}

json read_object(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return json::object();
  json object = io::read_json_file(file);
  BLIPFT_USER_CHECK(object.is_object(), file, ": found ", io::brief(object), ", expected an object");
  return object;
}

// Returns the ids that end a text: from generation_config.json, else config.json (its language model), else the
// tokenizer.
std::vector<int32_t> ends_of(const std::string& folder, const json& generation, const std::string& file,
                             const Tokenizer* tokenizer) {
  std::vector<int32_t> ends;
  add_ends(generation, file, ends);
  const std::string config_file = folder + "/config.json";
  const json config = read_object(config_file);
  if (ends.empty()) add_ends(config, config_file, ends);
  if (const auto text = config.find("text_config"); ends.empty() && text != config.end() && text->is_object())
    add_ends(*text, config_file, ends);
  if (const auto id = tokenizer ? tokenizer->eos_id() : std::nullopt; ends.empty() && id) ends.push_back(*id);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

EarlyStopping early_stopping_of(const json& object, const std::string& file) {
  const auto found = object.find("early_stopping");
  if (found == object.end() || found->is_null() || *found == false) return EarlyStopping::no;
  if (*found == true) return EarlyStopping::yes;
  BLIPFT_USER_CHECK(*found == "never", file, ": early_stopping: found ", io::brief(*found),
                    ", expected true, false or \"never\"");
  return EarlyStopping::never;
}

void check_draws(const TokenRules& rules, const std::string& file) {
  BLIPFT_USER_CHECK(rules.temperature > 0 && rules.top_k >= 0 && rules.top_p > 0 && rules.top_p <= 1 && rules.min_p >= 0 &&
                        rules.min_p <= 1, file, ": found temperature ", rules.temperature, ", top_k ", rules.top_k,
                    ", top_p ", rules.top_p, ", min_p ", rules.min_p,
                    "; expected a temperature > 0, a top_k >= 0, 0 < top_p <= 1 and 0 <= min_p <= 1");
}

}  // namespace

GenerateSettings generate_settings(const EngineSettings& config, const std::string& folder, const Tokenizer* tokenizer,
                                   const ModelInputs& inputs) {
  const std::string file = folder + "/generation_config.json";
  const json object = read_object(file);
  const JsonFields fields(object, file);
  const GenerateSection& g = config.generate;
  const auto given = [&](const char* key) { return config.locations.count(std::string("generate.") + key) > 0; };
  const auto number = [&](const char* key, double ours) { return given(key) ? ours : fields.get<double>(key, ours); };
  const auto count = [&](const char* key, int64_t ours) { return given(key) ? ours : fields.get<int64_t>(key, ours); };
  GenerateSettings settings;
  TokenRules& rules = settings.rules;
  rules.sample = g.do_sample == AutoSwitch::automatic ? fields.get<bool>("do_sample", false) : g.do_sample == AutoSwitch::on;
  rules.seed = static_cast<uint64_t>(config.steps.seed);
  if (rules.sample) {
    rules.temperature = static_cast<float>(number("temperature", g.temperature));
    rules.top_k = count("top_k", g.top_k);
    rules.top_p = static_cast<float>(number("top_p", g.top_p));
    rules.min_p = static_cast<float>(number("min_p", g.min_p));
    check_draws(rules, file);
  }
  rules.repetition_penalty = static_cast<float>(number("repetition_penalty", g.repetition_penalty));
  BLIPFT_USER_CHECK(rules.repetition_penalty > 0, file, ": repetition_penalty: found ", rules.repetition_penalty,
                    ", expected a number > 0");
  rules.min_new_tokens = count("min_new_tokens", g.min_new_tokens);
  // As in transformers, min_new_tokens has precedence over min_length.
  if (rules.min_new_tokens == 0) rules.min_length = fields.get<int64_t>("min_length", 0);
  settings.beams = given("num_beams") ? g.num_beams : fields.positive("num_beams", g.num_beams, kMaxBeams);
  settings.returned = given("num_return_sequences") ? g.num_return_sequences
                                                    : fields.positive("num_return_sequences", g.num_return_sequences, kMaxBeams);
  BLIPFT_USER_CHECK(!rules.sample || settings.beams == 1, location_of(config, "generate.num_beams"), ": generate.num_beams: ",
                    settings.beams, " beams and draws (do_sample) at once are not supported; give generate.num_beams=1 or "
                    "generate.do_sample=false");
  BLIPFT_USER_CHECK(settings.returned <= settings.beams, location_of(config, "generate.num_return_sequences"),
                    ": generate.num_return_sequences: found ", settings.returned, ", but there are ", settings.beams,
                    " beams (generate.num_beams); expected at most as many");
  refuse_unknown(object, file, settings);
  refuse_unless_given(object, file, config, inputs);
  settings.length_penalty = static_cast<float>(number("length_penalty", g.length_penalty));
  settings.early_stopping = given("early_stopping") ? g.early_stopping : early_stopping_of(object, file);
  settings.max_new_tokens = given("max_new_tokens") ? g.max_new_tokens
                                                    : fields.positive("max_new_tokens", g.max_new_tokens, kMaxRows);
  settings.file = file;
  if (!given("max_new_tokens") && !fields.has("max_new_tokens") && fields.has("max_length"))
    settings.max_length = fields.positive("max_length", 1, kMaxRows);
  settings.ends = ends_of(folder, object, file, tokenizer);
  for (const int32_t id : settings.ends)
    BLIPFT_USER_CHECK(id < inputs.text.vocabulary, folder, ": eos_token_id: found ", id, ", but the model has ", inputs.text.vocabulary,
                      " tokens");
  settings.stop = g.stop;
  BLIPFT_USER_CHECK(std::count(g.stop.begin(), g.stop.end(), "") == 0, location_of(config, "generate.stop"),
                    ": generate.stop: has an empty text, at which every answer would end; remove it");
  BLIPFT_USER_CHECK(settings.stop.empty() || settings.beams == 1, location_of(config, "generate.stop"),
                    ": generate.stop: texts at which answers end are of one beam, but generate.num_beams is ", settings.beams,
                    "; remove one of them");
  return settings;
}

std::string unused_sampling(const EngineSettings& config, const GenerateSettings& settings) {
  if (settings.rules.sample) return "";
  const GenerateSection defaults, &g = config.generate;
  std::string keys;
  int64_t unused = 0;
  const auto look = [&](const std::string& key, bool other) {
    const bool of_file = location_of(config, key).starts_with(config.file);
    if (other || !of_file) keys += concat(unused++ > 0 ? ", " : "", key);
  };
  look("generate.temperature", g.temperature != defaults.temperature);
  look("generate.top_k", g.top_k != defaults.top_k);
  look("generate.top_p", g.top_p != defaults.top_p);
  look("generate.min_p", g.min_p != defaults.min_p);
  if (unused == 0) return "";
  return concat(keys, unused == 1 ? " is" : " are", " not looked at, since no token is drawn; give generate.do_sample=true, ",
                "or remove ", unused == 1 ? "it" : "them");
}

std::string GenerateSettings::text() const {
  std::string text = beams > 1 ? concat("beam search of ", beams) : rules.sample ? "drawn" : "greedy";
  if (rules.sample) {
    text += concat(" at temperature ", rules.temperature);
    if (rules.top_k > 0) text += concat(", top_k ", rules.top_k);
    if (rules.top_p < 1) text += concat(", top_p ", rules.top_p);
    if (rules.min_p > 0) text += concat(", min_p ", rules.min_p);
  }
  if (rules.repetition_penalty != 1) text += concat(", repetition_penalty ", rules.repetition_penalty);
  if (max_length > 0) return concat(text, ", at most ", max_length, " tokens with the prompt");
  return concat(text, ", at most ", max_new_tokens, " tokens");
}

int64_t GenerateSettings::max_ids(const ModelInputs& inputs, int64_t prompt) const {
  const int64_t before = inputs.has_source() ? 1 : prompt;
  const int64_t wanted = max_length > 0 ? std::max(before + 1, max_length - inputs.text.first_rows) : before + max_new_tokens;
  return std::min(inputs.text.max_tokens + 1, wanted);
}

int64_t GenerateSettings::new_tokens(const ModelInputs& inputs, int64_t prompt) const {
  const int64_t before = inputs.has_source() ? 1 : prompt, rows = inputs.text.first_rows + before;
  BLIPFT_USER_CHECK(max_length == 0 || rows < max_length, file, ": max_length: found ", max_length, ", but the prompt alone takes ",
                    rows, " of these tokens; give generate.max_new_tokens, which counts new tokens alone and wins over it");
  return max_ids(inputs, prompt) - before;
}

}  // namespace blipft
