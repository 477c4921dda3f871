// Reading tokenizer.json: model, normalizer, pre_tokenizer, post_processor and added tokens.
#include "text/tokenizer_json.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "blipft/error.h"
#include "text/tokenizer_classes.h"

namespace blipft::tokenizer_json {

const Json& member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool flag(const Json& object, const char* key, bool otherwise) {
  const Json& value = member(object, key);
  return value.is_null() ? otherwise : value.get<bool>();
}

std::string content_of(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  const Json& content = member(token, "content");
  return content.is_string() ? content.get<std::string>() : std::string();
}

AddedToken added_token(const Json& token, bool special) {
  AddedToken out;
  out.content = content_of(token);
  out.special = token.is_string() ? special : special || flag(token, "special", false);
  out.lstrip = flag(token, "lstrip", false);
  out.rstrip = flag(token, "rstrip", false);
  out.single_word = flag(token, "single_word", false);
  out.normalized = flag(token, "normalized", !out.special);
  return out;
}

int32_t token_id(const Json& id, const std::string& location) {
  BLIPFT_USER_CHECK(id.is_number_unsigned() && id.get<uint64_t>() < max_token_ids, location, " has the id ",
                    io::brief(id), "; expected an integer from 0 on, below ", max_token_ids);
  return id.get<int32_t>();
}

int32_t token_id(const std::string& id, const std::string& location) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), value);
  const bool whole = error == std::errc() && end == id.data() + id.size();
  return token_id(whole ? Json(value) : Json(id), location);
}

void read_vocab(const Json& vocab, const std::string& file, TokenizerSpec& spec) {
  BLIPFT_USER_CHECK(vocab.is_object() && !vocab.empty(), file, ": the vocabulary is ",
                    vocab.is_object() ? "empty" : vocab.type_name(), "; expected an object of token: id");
  spec.bpe.vocab.reserve(vocab.size() * 2);
  for (const auto& [token, id] : vocab.items()) {
    // The text for messages is built only on error, because there are many tokens.
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < max_token_ids;
    spec.bpe.vocab.emplace(token, fits ? id.get<int32_t>()
                                       : token_id(id, concat(file, ": token \"", brief(token), "\"")));
  }
}

std::pair<std::string, std::string> merge_of(const std::string& line, const std::string& file, size_t number) {
  const size_t space = line.find(' ');
  const bool two = space != std::string::npos && space > 0 && space + 1 < line.size() &&
                   line.find(' ', space + 1) == std::string::npos;
  BLIPFT_USER_CHECK(two, file, ": merge ", number, " is \"", brief(line),
                    "\"; expected two tokens with one space between");
  return {line.substr(0, space), line.substr(space + 1)};
}

namespace {

std::string type_of(const Json& part) {
  const Json& type = member(part, "type");
  return type.is_string() ? brief(type.get<std::string>()) : part.is_null() ? "null" : "(no type)";
}

/// Reads both forms of merges: "a b" and ["a", "b"].
void read_merges(const Json& merges, const std::string& file, TokenizerSpec& spec) {
  BLIPFT_USER_CHECK(merges.is_array(), file, ": model.merges is ", merges.type_name(), "; expected an array");
  for (const Json& merge : merges) {
    const size_t number = spec.bpe.merges.size() + 1;
    if (merge.is_string()) {
      spec.bpe.merges.push_back(merge_of(merge.get<std::string>(), file, number));
      continue;
    }
    BLIPFT_USER_CHECK(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(), file,
                      ": merge ", number, " is ", io::brief(merge), "; expected \"a b\" or [\"a\", \"b\"]");
    spec.bpe.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
}

void read_unigram(const Json& model, const std::string& file, TokenizerSpec& spec) {
  const Json &pieces = member(model, "vocab"), &unknown = member(model, "unk_id");
  BLIPFT_USER_CHECK(pieces.is_array() && !pieces.empty() && pieces.size() < max_token_ids, file, ": model.vocab is ",
                    pieces.is_array() ? "empty or too long" : pieces.type_name(), "; expected a list of [token, score]");
  BLIPFT_USER_CHECK(unknown.is_number_unsigned() && unknown.get<uint64_t>() < pieces.size(), file, ": model.unk_id is ",
                    io::brief(unknown), "; only Unigram with a token for what is unknown is supported");
  BLIPFT_USER_CHECK(!flag(model, "byte_fallback", false), file, ": model.byte_fallback is true; of Unigram only false is ",
                    "supported");
  UnigramSpec unigram;
  unigram.unknown_id = unknown.get<int32_t>();
  for (const Json& piece : pieces) {
    BLIPFT_USER_CHECK(piece.is_array() && piece.size() == 2 && piece[0].is_string() && piece[1].is_number(), file,
                      ": model.vocab: token ", unigram.pieces.size(), " is ", io::brief(piece), "; expected [token, score]");
    spec.bpe.vocab[piece[0].get<std::string>()] = static_cast<int32_t>(unigram.pieces.size());
    unigram.pieces.emplace_back(piece[0].get<std::string>(), piece[1].get<double>());
  }
  spec.unigram = std::move(unigram);
}

void read_word_piece(const Json& model, const std::string& file, TokenizerSpec& spec) {
  WordPieceSpec pieces;
  read_vocab(member(model, "vocab"), file + ": model.vocab", spec);
  pieces.vocab.assign(spec.bpe.vocab.begin(), spec.bpe.vocab.end());
  const Json &prefix = member(model, "continuing_subword_prefix"), &maximum = member(model, "max_input_chars_per_word");
  if (prefix.is_string()) pieces.prefix = prefix.get<std::string>();
  if (maximum.is_number_integer()) pieces.max_characters = maximum.get<int64_t>();
  const Json& unknown = member(model, "unk_token");
  const auto id = unknown.is_string() ? id_of(spec, unknown.get<std::string>()) : std::nullopt;
  BLIPFT_USER_CHECK(id, file, ": model.unk_token is ", io::brief(unknown), ", which is no token of the vocabulary; ",
                    "only WordPiece with a token for what is unknown is supported");
  pieces.unknown_id = *id;
  spec.word_piece = std::move(pieces);
}

void read_model(const Json& model, const std::string& file, TokenizerSpec& spec) {
  const Json& type = member(model, "type");
  if (type == "Unigram") return read_unigram(model, file, spec);
  if (type == "WordPiece") return read_word_piece(model, file, spec);
  const bool bpe = type.is_string() ? type == "BPE" : !member(model, "merges").is_null();
  BLIPFT_USER_CHECK(bpe, file, ": model.type is ", type_of(model), "; only BPE, Unigram and WordPiece are supported");
  const Json &prefix = member(model, "continuing_subword_prefix"), &suffix = member(model, "end_of_word_suffix");
  BLIPFT_USER_CHECK(prefix.is_null() || prefix == "", file, ": model.continuing_subword_prefix is ", io::brief(prefix),
                    "; only BPE without it is supported");
  if (suffix.is_string()) spec.bpe.end_of_word = suffix.get<std::string>();
  const Json& dropout = member(model, "dropout");
  BLIPFT_USER_CHECK(dropout.is_null() || dropout == 0.0, file, ": model.dropout is ", io::brief(dropout),
                    "; only null is supported");
  read_vocab(member(model, "vocab"), file + ": model.vocab", spec);
  read_merges(member(model, "merges"), file, spec);
  spec.bpe.byte_fallback = flag(model, "byte_fallback", false);
  BLIPFT_USER_CHECK(!spec.bpe.byte_fallback || spec.bpe.end_of_word.empty(), file, ": model.end_of_word_suffix is ",
                    io::brief(suffix), "; with byte_fallback only BPE without it is supported");
  spec.bpe.fuse_unknown = flag(model, "fuse_unk", false);
  spec.bpe.ignore_merges = flag(model, "ignore_merges", false);
  if (const Json& unknown = member(model, "unk_token"); unknown.is_string()) {
    const auto found = spec.bpe.vocab.find(unknown.get<std::string>());
    if (found != spec.bpe.vocab.end()) spec.bpe.unknown_id = found->second;
  }
}

std::string text_at(const Json& object, const char* key, const std::string& file, const std::string& location) {
  const Json& value = member(object, key);
  BLIPFT_USER_CHECK(value.is_string(), file, ": ", location, ".", key, " is ", io::brief(value), "; expected a text");
  return value.get<std::string>();
}

/// Returns the pattern of a Split or a Replace: {"Regex": Oniguruma's syntax} or {"String": a text}.
std::shared_ptr<const Pattern> pattern_of(const Json& part, const std::string& location) {
  const Json& pattern = member(part, "pattern");
  const Json &expression = member(pattern, "Regex"), &text = member(pattern, "String");
  BLIPFT_USER_CHECK(expression.is_string() || (text.is_string() && text != ""), location, ".pattern: found ",
                    io::brief(pattern), ", expected {\"Regex\": a pattern} or {\"String\": a text}");
  if (expression.is_string()) return std::make_shared<Pattern>(expression.get<std::string>(), location + ".pattern");
  std::string escaped;
  for (const char c : text.get<std::string>()) {
    if (static_cast<uint8_t>(c) < 0x80 && std::isalnum(c) == 0) escaped += '\\';
    escaped += c;
  }
  return std::make_shared<Pattern>(escaped, location + ".pattern");
}

void read_normalizer(const Json& normalizer, const std::string& file, TokenizerSpec& spec) {
  using Kind = NormalizerStep::Kind;
  const std::string type = type_of(normalizer);
  if (normalizer.is_null()) return;
  if (type == "Sequence") {
    for (const Json& part : member(normalizer, "normalizers")) read_normalizer(part, file, spec);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    using enum unicode::NormalForm;
    const auto form = type == "NFC" ? nfc : type == "NFD" ? nfd : type == "NFKC" ? nfkc : nfkd;
    spec.normalizer.push_back({Kind::form, "", "", {}, form});
  } else if (type == "Lowercase") {
    spec.normalizer.push_back({Kind::small_letters, "", "", {}});
  } else if (type == "Precompiled") {
    spec.normalizer.push_back(
        {Kind::precompiled, text_at(normalizer, "precompiled_charsmap", file, "normalizer"), "", {}});
  } else if (type == "BertNormalizer") {
    const bool small = flag(normalizer, "lowercase", true);
    const BertText form{flag(normalizer, "clean_text", true), flag(normalizer, "handle_chinese_chars", true),
                        flag(normalizer, "strip_accents", small), small};
    spec.normalizer.push_back({Kind::bert, "", "", form});
  } else if (type == "Prepend") {
    spec.normalizer.push_back({Kind::prepend, "", text_at(normalizer, "prepend", file, "normalizer"), {}});
  } else {
    BLIPFT_USER_CHECK(type == "Replace", file, ": the normalizer is of type ", type,
                      "; supported are NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Precompiled, BertNormalizer "
                      "and Sequence of them, or none");
    NormalizerStep step{Kind::replace, "", text_at(normalizer, "content", file, "normalizer"), {}};
    const Json& text = member(member(normalizer, "pattern"), "String");
    if (text.is_string() && text != "") step.from = text.get<std::string>();
    else step.pattern = pattern_of(normalizer, file + ": normalizer");
    spec.normalizer.push_back(std::move(step));
  }
}

void read_metaspace(const Json& part, const std::string& file, TokenizerSpec& spec) {
  Metaspace metaspace;
  if (!member(part, "replacement").is_null())
    metaspace.replacement = text_at(part, "replacement", file, "pre_tokenizer");
  const Json& scheme = member(part, "prepend_scheme");
  const bool prepend = flag(part, "add_prefix_space", true);  // the key of older files
  BLIPFT_USER_CHECK(scheme.is_null() || scheme == "always" || scheme == "first" || scheme == "never", file,
                    ": pre_tokenizer.prepend_scheme is ", io::brief(scheme), "; supported are always, first and never");
  metaspace.prepend = !prepend || scheme == "never" ? Metaspace::Prepend::never
                      : scheme == "first"           ? Metaspace::Prepend::first
                                                    : Metaspace::Prepend::always;
  metaspace.split = flag(part, "split", true);
  BLIPFT_USER_CHECK(!metaspace.replacement.empty(), file, ": pre_tokenizer.replacement is empty; expected a character");
  spec.metaspace = metaspace;
}

SplitStep split_step(const Json& part, const std::string& file) {
  using enum SplitStep::Behavior;
  const Json& behavior = member(part, "behavior");
  constexpr std::pair<const char*, SplitStep::Behavior> behaviors[] = {
      {"Isolated", isolated}, {"Removed", removed}, {"Contiguous", contiguous},
      {"MergedWithPrevious", merged_with_previous}, {"MergedWithNext", merged_with_next}};
  const auto found = std::find_if(std::begin(behaviors), std::end(behaviors),
                                  [&](const auto& one) { return behavior == one.first; });
  BLIPFT_USER_CHECK(found != std::end(behaviors), file, ": pre_tokenizer: Split.behavior: found ", io::brief(behavior),
                    ", expected Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
  return {pattern_of(part, file + ": pre_tokenizer: Split"), found->second, flag(part, "invert", false)};
}

/// Reads null, Metaspace, or any number of Split, Digits and WhitespaceSplit, optionally followed by ByteLevel. Each
/// may be in a Sequence.
void read_pre_tokenizer(const Json& pre_tokenizer, const std::string& file, TokenizerSpec& spec) {
  std::vector<Json> parts;
  if (type_of(pre_tokenizer) == "Sequence") {
    for (const Json& part : member(pre_tokenizer, "pretokenizers")) parts.push_back(part);
  } else if (!pre_tokenizer.is_null()) {
    parts.push_back(pre_tokenizer);
  }
  std::string types;
  for (const Json& part : parts) types += (types.empty() ? "" : ", ") + type_of(part);
  if (spec.word_piece) {
    BLIPFT_USER_CHECK(types == "BertPreTokenizer", file, ": the pre_tokenizer is of type ", types,
                      "; with WordPiece supported is BertPreTokenizer");
    return;
  }
  if (spec.unigram) {
    BLIPFT_USER_CHECK(types == "WhitespaceSplit, Metaspace", file, ": the pre_tokenizer is of type ", types,
                      "; with Unigram supported is WhitespaceSplit with Metaspace behind it, as T5 has it");
    read_metaspace(parts.back(), file, spec);
    BLIPFT_USER_CHECK(spec.metaspace->prepend == Metaspace::Prepend::always && spec.metaspace->split, file,
                      ": pre_tokenizer: found ", io::brief(parts.back()), "; with Unigram supported are prepend_scheme ",
                      "always and split true");
    return;
  }
  using enum SplitStep::Behavior;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const std::string type = type_of(part);
    const auto pattern = [&](const char* expression) {
      return std::make_shared<Pattern>(expression, file + ": pre_tokenizer");
    };
    if (type == "Metaspace" && parts.size() == 1) {
      read_metaspace(part, file, spec);
    } else if (type == "Split") {
      spec.split.push_back(split_step(part, file));
    } else if (type == "Digits") {
      spec.split.push_back({pattern(R"(\p{N})"), flag(part, "individual_digits", false) ? isolated : contiguous});
    } else if (type == "WhitespaceSplit") {
      spec.split.push_back({pattern(R"(\s)"), removed});
    } else {
      spec.add_prefix_space = flag(part, "add_prefix_space", true);
      BLIPFT_USER_CHECK(type == "ByteLevel" && i + 1 == parts.size() && (i == 0 || !spec.add_prefix_space), file,
                        ": the pre_tokenizer is of type ", types, "; supported are none, Metaspace, and Split, Digits "
                        "and WhitespaceSplit with ByteLevel behind them, which has add_prefix_space false there");
      spec.bpe.byte_level = true;
      if (flag(part, "use_regex", true)) spec.split.push_back({pattern(gpt2_expression)});
    }
  }
}

/// Reads the id of a pair such as ["</s>", 2].
int32_t pair_id(const Json& processor, const char* key, const std::string& file) {
  const Json& pair = member(processor, key);
  BLIPFT_USER_CHECK(pair.is_array() && pair.size() == 2, file, ": post_processor.", key, " is ", io::brief(pair),
                    "; expected [token, id]");
  return token_id(pair[1], concat(file, ": post_processor.", key));
}

void read_template(const Json& processor, const std::string& file, TokenizerSpec& spec) {
  std::vector<int32_t> before, after;
  int sequences = 0;
  for (const Json& piece : member(processor, "single")) {
    if (!member(piece, "Sequence").is_null()) {
      ++sequences;
      continue;
    }
    const std::string name = member(member(piece, "SpecialToken"), "id").get<std::string>();
    const Json& ids = member(member(member(processor, "special_tokens"), name.c_str()), "ids");
    BLIPFT_USER_CHECK(ids.is_array(), file, ": post_processor.special_tokens has no ids for \"", brief(name),
                      "\", which post_processor.single uses");
    const std::string location = concat(file, ": post_processor.special_tokens: \"", brief(name), "\"");
    for (const Json& id : ids) (sequences == 0 ? before : after).push_back(token_id(id, location));
  }
  BLIPFT_USER_CHECK(sequences == 1, file, ": post_processor.single has ", sequences,
                    " places for the text; expected one");
  spec.prefix_ids.insert(spec.prefix_ids.begin(), before.begin(), before.end());
  spec.suffix_ids.insert(spec.suffix_ids.end(), after.begin(), after.end());
}

void read_post_processor(const Json& processor, const std::string& file, TokenizerSpec& spec) {
  const std::string type = type_of(processor);
  if (processor.is_null() || type == "ByteLevel") return;  // ByteLevel changes offsets only
  if (type == "Sequence") {
    for (const Json& part : member(processor, "processors")) read_post_processor(part, file, spec);
  } else if (type == "TemplateProcessing") {
    read_template(processor, file, spec);
  } else {
    BLIPFT_USER_CHECK(type == "RobertaProcessing" || type == "BertProcessing", file, ": the post_processor is of type ",
                      type, "; supported are TemplateProcessing, ByteLevel, RobertaProcessing and Sequence of them");
    spec.prefix_ids.insert(spec.prefix_ids.begin(), pair_id(processor, "cls", file));
    spec.suffix_ids.push_back(pair_id(processor, "sep", file));
  }
}

void add_decoder(const Json& decoder, DecoderSpec& spec) {
  using Kind = DecoderStep::Kind;
  const std::string type = type_of(decoder);
  const auto text = [&](const char* key, const char* otherwise) {
    const Json& value = member(decoder, key);
    return value.is_string() ? value.get<std::string>() : std::string(otherwise);
  };
  const auto number = [&](const char* key) {
    const Json& value = member(decoder, key);
    return value.is_number_integer() ? value.get<int64_t>() : int64_t{0};
  };
  const auto refuse = [&] {
    if (spec.unsupported.empty()) spec.unsupported = "found " + io::brief(decoder) + ", which is not supported";
  };
  const bool fused = std::any_of(spec.steps.begin(), spec.steps.end(), [](const DecoderStep& step) {
    return step.kind == Kind::fuse || step.kind == Kind::byte_level;
  });
  if (decoder.is_null()) return;
  if (type == "Sequence") {
    for (const Json& part : member(decoder, "decoders")) add_decoder(part, spec);
  } else if (type == "Replace") {
    const Json& from = member(member(decoder, "pattern"), "String");
    if (!from.is_string() || from == "" || fused) return refuse();
    spec.steps.push_back({Kind::replace, from.get<std::string>(), text("content", "")});
  } else if (type == "Fuse") {
    spec.steps.push_back({Kind::fuse});
  } else if (type == "Strip") {
    if (number("stop") != 0 || text("content", "").empty()) return refuse();
    spec.steps.push_back({Kind::strip, text("content", ""), "", number("start")});
  } else if (fused) {
    refuse();                               // the others need whole tokens
  } else if (type == "ByteLevel") {
    spec.steps.push_back({Kind::byte_level});
  } else if (type == "ByteFallback") {
    spec.steps.push_back({Kind::byte_fallback});
  } else if (type == "Metaspace") {
    const bool never = member(decoder, "prepend_scheme") == "never" || !flag(decoder, "add_prefix_space", true);
    spec.steps.push_back({Kind::metaspace, text("replacement", "\u2581"), "", never ? 0 : 1});
  } else if (type == "WordPiece") {
    spec.steps.push_back({Kind::word_piece, text("prefix", "##")});
    if (flag(decoder, "cleanup", true)) spec.steps.push_back({Kind::clean_spaces});
  } else {
    refuse();
  }
}

}  // namespace

Json spaces_decoder(bool strips_first) {
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  Json steps = Json::array({replace, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (strips_first) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

void read_decoder(const Json& decoder, TokenizerSpec& spec) { add_decoder(decoder, spec.decoder); }

bool has_part(const Json& value, const std::string& type) {
  if (!value.is_structured()) return false;
  if (type_of(value) == type) return true;
  for (const auto& [key, part] : value.items())
    if (key != "vocab" && key != "merges" && key != "added_tokens" && has_part(part, type)) return true;
  return false;
}

void read(Json json, const std::string& tokenizer_class, const Json& config, TokenizerSpec& spec) {
  put_parts_of_class(tokenizer_class, config, json);
  read_model(member(json, "model"), spec.file, spec);
  read_normalizer(member(json, "normalizer"), spec.file, spec);
  read_pre_tokenizer(member(json, "pre_tokenizer"), spec.file, spec);
  read_post_processor(member(json, "post_processor"), spec.file, spec);
  read_decoder(member(json, "decoder"), spec);
  for (const Json& entry : member(json, "added_tokens")) {
    const AddedToken token = added_token(entry, false);
    const int32_t id =
        token_id(member(entry, "id"), concat(spec.file, ": added_tokens: \"", brief(token.content), "\""));
    const auto known = id_of(spec, token.content);
    BLIPFT_USER_CHECK(!known || *known == id, spec.file, ": added token \"", brief(token.content), "\" has the id ", id,
                      ", but the vocabulary says ", known.value_or(-1));
    add_token(spec, token);  // a token outside the vocabulary gets the next free id, as in the Hugging Face library
  }
}

}  // namespace blipft::tokenizer_json
