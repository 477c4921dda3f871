// Reads rotary positions; see rotary_config.h.
#include "models/families/decoder/rotary_config.h"

#include <algorithm>
#include <cmath>

namespace blipft {

namespace {

constexpr double kMaxScaling = 1e6;         // limit of scaling factors of positions

float f(double x) { return static_cast<float>(x); }

// Divides frequencies of long wavelengths by the factor, keeps short wavelengths, and interpolates between. Computes
// transformers' _compute_llama3_parameters operation by operation in f32.
void scale_llama3(const RotarySource& source, RotaryPositions& rotary, int64_t pairs) {
  const JsonFields &fields = source.fields, &rope = source.rope;
  const auto required = [&](const char* key) {
    BLIPFT_USER_CHECK(rope.has(key), rope.file(), ": ", rope.prefix(), key, ": is missing, llama3 scaling needs it");
    return rope.get<double>(key, 0);
  };
  const double factor = required("factor"), low = required("low_freq_factor"), high = required("high_freq_factor");
  // If both keys exist, transformers prefers the one outside of the rope section.
  const auto length = static_cast<double>(fields.has("original_max_position_embeddings")
                                              ? fields.rows("original_max_position_embeddings", source.positions)
                                              : rope.rows("original_max_position_embeddings", source.positions));
  BLIPFT_USER_CHECK(factor >= 1 && factor <= kMaxScaling && low >= 1 / kMaxScaling && high > low &&
                        high <= kMaxScaling,
                    rope.file(), ": ", rope.prefix(), "factor ", factor,
                    ", low_freq_factor ", low, ", high_freq_factor ", high,
                    ": expected a factor of at least 1 and 0 < low_freq_factor < high_freq_factor, all at most ",
                    kMaxScaling);
  for (int64_t i = 0; i < pairs; ++i) {
    float& frequency = rotary.frequencies[static_cast<size_t>(i)];
    const float wavelength = 1 / frequency * f(2 * M_PI);  // bitwise equal to number / tensor in PyTorch
    const float stretched = wavelength > f(length / low) ? frequency / f(factor) : frequency;
    const float smooth = (1 / wavelength * f(length) - f(low)) / f(high - low);
    const float between = (1 - smooth) * stretched / f(factor) + smooth * stretched;
    const bool medium = !(wavelength < f(length / high)) && !(wavelength > f(length / low));
    frequency = medium ? between : stretched;
  }
}

void scale_linear(const JsonFields& rope, RotaryPositions& rotary) {
  const double factor = rope.get<double>("factor", 0);
  BLIPFT_USER_CHECK(factor >= 1 && factor <= kMaxScaling, rope.file(), ": ", rope.prefix(), "factor: found ",
                    rope.has("factor") ? concat(factor) : "nothing", ", linear scaling expects a number from 1 to ",
                    kMaxScaling);
  for (float& frequency : rotary.frequencies) frequency /= f(factor);
}

// LongRoPE (Ding et al. 2024) has two lists of factors: one for calls whose longest text has at most the original
// number of positions, and one for all texts of longer calls. The factors of a text would depend on the other texts of
// its batch, so only texts of the first kind are supported. `powers` are the powers of the base; the frequencies are
// their inverses.
void scale_longrope(const RotarySource& source, const std::vector<float>& powers, RotaryPositions& rotary,
                    int64_t& max_tokens) {
  const JsonFields& rope = source.rope;
  for (const char* key : {"short_factor", "long_factor"}) {
    const std::vector<double> factors = rope.get<std::vector<double>>(key, {});
    BLIPFT_USER_CHECK(factors.size() == powers.size(), rope.file(), ": ", rope.prefix(), key, ": found ",
                      factors.size(), " numbers, expected one for each of the ", powers.size(), " pairs that turn");
    for (const double factor : factors)
      BLIPFT_USER_CHECK(factor >= 1 / kMaxScaling && factor <= kMaxScaling, rope.file(), ": ", rope.prefix(), key,
                        ": found ", factor, ", expected numbers from ", 1 / kMaxScaling, " to ", kMaxScaling);
  }
  const std::vector<double> factors = rope.get<std::vector<double>>("short_factor", {});
  for (size_t i = 0; i < powers.size(); ++i) rotary.frequencies[i] = 1.0f / (f(factors[i]) * powers[i]);
  const auto original = static_cast<double>(source.original_positions);
  const double factor = rope.get<double>("factor", static_cast<double>(source.positions) / original);
  const double usual = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  const double magnitude = rope.get<double>("attention_factor", usual);
  BLIPFT_USER_CHECK(magnitude > 0 && magnitude <= kMaxScaling, rope.file(), ": ", rope.prefix(),
      "attention_factor: found ",
                    magnitude, ", expected a positive number, at most ", kMaxScaling);
  rotary.magnitude = f(magnitude);
  max_tokens = std::min(max_tokens, source.original_positions);
}

std::string read_type(const RotarySource& source) {
  const JsonFields& rope = source.rope;
  std::string type = rope.get<std::string>("rope_type", rope.get<std::string>("type", "default"));
  if (source.phi && (type == "su" || type == "yarn")) type = "longrope";  // older names in Phi's files
  if (source.mrope && type == "mrope") type = "default";
  const bool known = type == "default" || (source.phi ? type == "longrope" : type == "linear" || type == "llama3");
  BLIPFT_USER_CHECK(known, rope.file(), ": ", rope.prefix(), rope.has("rope_type") ? "rope_type" : "type",
                    ": found \"", brief(type), "\", supported are ",
                    source.phi ? "\"default\" and \"longrope\"" : "\"default\", \"linear\" and \"llama3\"");
  return type;
}

int64_t read_rotated(const RotarySource& source) {
  const JsonFields &fields = source.fields, &rope = source.rope;
  if (source.rotated_part == 0) {
    rope.only<double>("partial_rotary_factor", 1.0);
    fields.only<double>("partial_rotary_factor", 1.0);
    return source.head_size;
  }
  const double part = rope.get<double>("partial_rotary_factor", fields.get<double>("partial_rotary_factor", source.rotated_part));
  const auto rotated = part > 0 && part <= 1 ? static_cast<int64_t>(static_cast<double>(source.head_size) * part) : 0;
  BLIPFT_USER_CHECK(rotated > 0 && rotated % 2 == 0, fields.file(), ": ",
                    rope.has("partial_rotary_factor") ? rope.prefix() : fields.prefix(),
                        "partial_rotary_factor: found ",
                    part, " of heads of size ", source.head_size, ", expected what makes an even number of elements");
  return rotated;
}

}  // namespace

const char* rope_key(const JsonFields& fields) {
  const bool old = fields.has("rope_scaling") && !fields.section("rope_scaling").empty();
  return old ? "rope_scaling" : "rope_parameters";
}

JsonFields shared_rope(const JsonFields& fields, const std::string& model_type) {
  const JsonFields rope = fields.section(rope_key(fields));
  for (const char* layers : {"full_attention", "sliding_attention"})
    BLIPFT_USER_CHECK(!rope.has(layers), rope.file(), ": ", rope.prefix(), layers,
                      ": layers with rotary positions of their own are not supported in a ", model_type);
  return rope;
}

RotaryPositions read_rotary(const RotarySource& source, int64_t& max_tokens) {
  const JsonFields &fields = source.fields, &rope = source.rope;
  const std::string type = read_type(source);
  const float beside = source.base_next_to ? fields.get<float>("rope_theta", f(source.base)) : f(source.base);
  const float base = rope.get<float>("rope_theta", beside);
  BLIPFT_USER_CHECK(base >= 1e-6f && base <= 1e30f, fields.file(), ": ",
                    rope.has("rope_theta") ? rope.prefix() : fields.prefix(),
                    "rope_theta: found ", base, ", expected a positive number, of common size");
  const int64_t rotated = read_rotated(source), pairs = rotated / 2;
  RotaryPositions rotary;
  if (rotated < source.head_size) rotary.rotated = rotated;
  std::vector<float> powers;
  for (int64_t i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotated);
    powers.push_back(f(std::pow(static_cast<double>(base), double{exponent})));
    rotary.frequencies[static_cast<size_t>(i)] = 1.0f / powers.back();
  }
  if (type == "llama3") scale_llama3(source, rotary, pairs);
  if (type == "linear") scale_linear(rope, rotary);
  if (type == "longrope") scale_longrope(source, powers, rotary, max_tokens);
  return rotary;
}

}  // namespace blipft
