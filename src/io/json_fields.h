// Typed access to a JSON object with errors that name file and key.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "blipft/error.h"
#include "io/json.h"

namespace blipft {

/// Upper limits for the sizes in a config.json. They are far above the sizes of any model, and small enough that no
/// product of them overflows and no list of layers exhausts the memory.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = int64_t{1} << 20;           // width of rows: hidden sizes, heads, queries, picture sides
constexpr int64_t kMaxRows = int64_t{1} << 27;            // vocabulary, positions

class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {
    BLIPFT_USER_CHECK(object_.is_object(), file_, ": ", prefix_.empty() ? "the file" : prefix_, " is ",
                      io::brief(object_), ", expected an object");
  }

  /// Returns the value of `key`, or `fallback` if the key is absent or null. Integers must be whole numbers that fit
  /// into T; floats must be finite.
  template <class T>
  T get(const std::string& key, T fallback) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return fallback;
    try {
      if (is_a<T>(*found)) return found->get<T>();
    } catch (const nlohmann::json::exception&) {           // a list with an element of another type
    }
    throw UserError(concat(file_, ": ", prefix_, key, ": found ", io::brief(*found), ", expected ",
                           std::is_same_v<T, bool>           ? "true or false"
                           : std::is_integral_v<T>           ? "a number, whole and of at most 63 bits"
                           : std::is_arithmetic_v<T>         ? "a finite number"
                           : std::is_same_v<T, std::string>  ? "a text"
                           : std::is_same_v<T, std::vector<std::string>> ? "a list of texts"
                                                                         : "a list of numbers"));
  }
  /// Returns a whole number from 1 to `maximum`.
  int64_t positive(const std::string& key, int64_t fallback, int64_t maximum = kMaxWidth) const {
    const int64_t value = get<int64_t>(key, fallback);
    BLIPFT_USER_CHECK(value > 0 && value <= maximum, file_, ": ", prefix_, key, ": found ", value,
                      ", expected a positive number, at most ", maximum);
    return value;
  }
  int64_t layers(const std::string& key, int64_t fallback) const { return positive(key, fallback, kMaxLayers); }
  int64_t rows(const std::string& key, int64_t fallback) const { return positive(key, fallback, kMaxRows); }
  /// Returns an epsilon that is added below a square root: greater than 0, at most 1.
  float epsilon(const std::string& key, float fallback) const {
    const auto value = get<float>(key, fallback);
    BLIPFT_USER_CHECK(value > 0 && value <= 1, file_, ": ", prefix_, key, ": found ", quote(key),
                      ", expected a number > 0 and <= 1");
    return value;
  }
  /// Returns a dropout probability.
  float probability(const std::string& key, float fallback) const {
    const auto value = get<float>(key, fallback);
    BLIPFT_USER_CHECK(value >= 0 && value < 1, file_, ": ", prefix_, key, ": found ", value,
                      ", expected a number >= 0 and < 1");
    return value;
  }
  /// Returns the standard deviation for the initialization of weights.
  float deviation(const std::string& key, float fallback) const {
    const auto value = get<float>(key, fallback);
    BLIPFT_USER_CHECK(value >= 0 && value <= 100, file_, ": ", prefix_, key, ": found ", value,
                      ", expected a number >= 0 and <= 100");
    return value;
  }
  /// Fails unless `key` is absent or has the one value that is supported.
  template <class T>
  void only(const std::string& key, const T& supported) const {
    const T value = get<T>(key, supported);
    BLIPFT_USER_CHECK(value == supported, file_, ": ", prefix_, key, ": found ", io::brief(nlohmann::json(value)),
                      ", supported is ", io::brief(nlohmann::json(supported)));
  }
  JsonFields section(const std::string& key) const {
    static const nlohmann::json kEmpty = nlohmann::json::object();
    const auto found = object_.find(key);
    const bool absent = found == object_.end() || found->is_null();
    return JsonFields(absent ? kEmpty : *found, file_, prefix_ + key + ".");
  }
  bool has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }
  /// Returns true if the file contains an explicit null, for keys whose absence means a default.
  bool is_null(const std::string& key) const { return object_.contains(key) && object_[key].is_null(); }
  bool empty() const { return object_.empty(); }
  /// Returns the value of an existing key as text for messages.
  std::string quote(const std::string& key) const { return io::brief(object_.at(key)); }
  const std::string& file() const { return file_; }
  const std::string& prefix() const { return prefix_; }

 private:
  template <class T>
  static bool is_a(const nlohmann::json& value) {
    if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
    else if constexpr (std::is_integral_v<T>)
      return value.is_number_integer() &&
             (!value.is_number_unsigned() ||
              value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<T>::max()));
    else if constexpr (std::is_arithmetic_v<T>)
      return value.is_number() && std::abs(value.get<double>()) <= static_cast<double>(std::numeric_limits<T>::max());
    else return true;
  }

  const nlohmann::json& object_;
  std::string file_, prefix_;
};

}  // namespace blipft
