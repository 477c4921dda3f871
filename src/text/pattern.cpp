#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "blipft/error.h"
#include "text/pattern_translator.h"
#include "text/unicode.h"

namespace blipft {
namespace {

// The limits of one match. A step takes about a nanosecond, and known patterns need a few steps for each character.
constexpr size_t max_steps = 1'000'000, max_steps_per_character = 16;
constexpr uint32_t max_heap_kib = 65536;
constexpr size_t jit_stack_bytes = size_t{1} << 20;

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* made) const {
    Free(made);
  }
};

/// The PCRE2 objects and the memory with which one thread matches.
struct Matcher {
  std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(32768, jit_stack_bytes, nullptr)};
  std::string bytes;  ///< one byte for each character of the text

  Matcher() {
    pcre2_set_heap_limit(context.get(), max_heap_kib);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

struct Pattern::Compiled {
  std::string location, expression;
  std::vector<uint8_t> byte_of;
  std::unique_ptr<pcre2_code, Freed<pcre2_code_free>> code;
  decltype(&pcre2_match) match = nullptr;
};

Pattern::Pattern(const std::string& expression, std::string location) {
  TranslatedPattern translated = translate_pattern(expression, location);
  int error = 0;
  size_t at = 0;
  auto compiled = std::make_unique<Compiled>();
  // PCRE2_NO_START_OPTIMIZE: 10.42's JIT skips a match of "(?>[op]+?p?+)p{2,}" in "popppp". Texts match nearly
  // everywhere.
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.pcre2.data()), translated.pcre2.size(),
                                     PCRE2_NEVER_UTF | PCRE2_NEVER_UCP | PCRE2_NO_START_OPTIMIZE, &error, &at,
                                     nullptr));
  if (!compiled->code) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    throw UserError(concat(location, ": found the pattern \"", brief(expression, 200), "\", which PCRE2 does not compile (",
                           reinterpret_cast<const char*>(message),
                           "), expected one within its limits. Use a tokenizer with another pattern."));
  }
  // Matching works without JIT compilation, too, but is slower.
  compiled->match = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE) == 0 ? pcre2_jit_match : pcre2_match;
  compiled->location = std::move(location);
  compiled->expression = expression;
  compiled->byte_of = std::move(translated.byte_of);
  compiled_ = std::move(compiled);
}

Pattern::~Pattern() = default;

std::vector<std::pair<size_t, size_t>> Pattern::matches(std::string_view text) const {
  thread_local Matcher matcher;
  std::string& bytes = matcher.bytes;
  bytes.resize(text.size());
  const uint8_t* const byte_of = compiled_->byte_of.data();
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const auto lead = static_cast<uint8_t>(text[at]);
    bytes[count] = static_cast<char>(byte_of[lead < 0x80 ? (++at, lead) : unicode::next_code_point(text, at)]);
  }
  std::vector<std::pair<size_t, size_t>> found;
  const bool ascii = count == text.size();
  size_t position = 0, character = 0;  // a byte of the text, and the character that begins there
  const auto byte_at = [&](size_t wanted) {
    if (ascii) return wanted;
    for (; character < wanted; ++character)
      for (++position; position < text.size() && (text[position] & 0xC0) == 0x80;) ++position;
    return position;
  };
  const size_t* const match = pcre2_get_ovector_pointer(matcher.data.get());
  const size_t limit = std::min<size_t>(max_steps + count * max_steps_per_character, UINT32_MAX);
  pcre2_set_match_limit(matcher.context.get(), static_cast<uint32_t>(limit));
  size_t last_end = SIZE_MAX;
  for (size_t from = 0; from <= count;) {
    const auto search = [&](const auto& match_function, uint32_t options) {
      return match_function(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(bytes.data()), count, from, options,
                            matcher.data.get(), matcher.context.get());
    };
    int result = search(*compiled_->match, 0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = search(pcre2_match, PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    BLIPFT_USER_CHECK(result > 0, compiled_->location, ": found a text of ", text.size(), " bytes in which the pattern \"",
                      brief(compiled_->expression, 200), "\" takes too many steps from byte ", byte_at(from),
                      " on (PCRE2's error ", result, "), expected at most ", limit,
                      ". Use a tokenizer with another pattern.");
    if (match[0] == match[1] && match[1] == last_end) {  // an empty match at the end of the last match
      ++from;
      continue;
    }
    from = last_end = match[1];
    const size_t begin = byte_at(match[0]);
    found.emplace_back(begin, byte_at(match[1]));
  }
  if (bytes.capacity() > jit_stack_bytes) std::string().swap(bytes);
  return found;
}

namespace {

using Piece = std::pair<std::string_view, bool>;  ///< a part of the text, and true if the pattern matched it

/// Joins each matched piece to the previous one, unless that one is matched too.
std::vector<Piece> merged(const std::vector<Piece>& pieces, bool backwards) {
  std::vector<Piece> out;
  bool matched = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[backwards ? pieces.size() - 1 - i : i];
    if (piece.second && !matched && !out.empty()) {
      const std::string_view other = out.back().first;
      const char* const begin = backwards ? piece.first.data() : other.data();
      out.back().first = {begin, other.size() + piece.first.size()};
    } else {
      out.push_back(piece);
    }
    matched = piece.second;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

void split_once(std::string_view text, const SplitStep& step, std::vector<std::string_view>& words) {
  using enum SplitStep::Behavior;
  std::vector<Piece> pieces;
  size_t done = 0;
  if (step.behavior == isolated) {  // the most frequent behavior
    for (const auto& [begin, end] : step.pattern->matches(text)) {
      if (begin > done) words.push_back(text.substr(done, begin - done));
      if (end > begin) words.push_back(text.substr(begin, end - begin));
      done = end;
    }
    if (done < text.size()) words.push_back(text.substr(done));
    return;
  }
  const auto add = [&](size_t end, bool matched) {
    const std::string_view piece = text.substr(done, end - done);
    done = end;
    if (step.behavior == contiguous && !pieces.empty() && pieces.back().second == matched)
      pieces.back().first = {pieces.back().first.data(), pieces.back().first.size() + piece.size()};
    else
      pieces.emplace_back(piece, matched);
  };
  for (const auto& [begin, end] : step.pattern->matches(text)) {
    if (begin > done) add(begin, step.inverted);
    add(end, !step.inverted);
  }
  if (done < text.size()) add(text.size(), step.inverted);
  if (step.behavior == merged_with_previous || step.behavior == merged_with_next)
    pieces = merged(pieces, step.behavior == merged_with_next);
  for (const auto& [piece, matched] : pieces)
    if (!piece.empty() && !(matched && step.behavior == removed)) words.push_back(piece);
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, const std::vector<SplitStep>& steps) {
  std::vector<std::string_view> words, parts;
  if (!text.empty()) words.push_back(text);
  for (const SplitStep& step : steps) {
    parts.swap(words);
    words.clear();
    for (const std::string_view part : parts) split_once(part, step, words);
  }
  return words;
}

const char* const gpt2_expression = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace blipft
