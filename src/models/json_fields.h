// Typed access to a JSON object with errors that name file and key.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "blipft/checkpoint.h"
#include "blipft/error.h"

namespace blipft {

/// Throws UserError naming the file.
inline nlohmann::json parse_json_file(const std::string& file) {
  try {
    return nlohmann::json::parse(read_text_file(file));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(concat(file, ": not valid JSON: ", error.what()));
  }
}

class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {
    BLIPFT_USER_CHECK(object_.is_object(), file_, ": ", prefix_.empty() ? "the file" : prefix_, " must be an object");
  }

  /// The value of `key`, or `fallback` where it is absent or null.
  template <class T>
  T get(const std::string& key, T fallback) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return fallback;
    try {
      if constexpr (std::is_same_v<T, bool>) {
        if (!found->is_boolean()) throw std::invalid_argument("");
      } else if constexpr (std::is_arithmetic_v<T>) {
        if (!found->is_number()) throw std::invalid_argument("");
      }
      return found->get<T>();
    } catch (const std::exception&) {
      throw UserError(concat(file_, ": ", prefix_, key, ": found ", found->dump(), ", expected ",
                             std::is_same_v<T, bool> ? "true or false"
                             : std::is_arithmetic_v<T> ? "a number" : "a text"));
    }
  }
  int64_t positive(const std::string& key, int64_t fallback) const {
    const int64_t value = get<int64_t>(key, fallback);
    BLIPFT_USER_CHECK(value > 0, file_, ": ", prefix_, key, ": found ", value, ", expected a positive number");
    return value;
  }
  /// Fails unless `key` is absent or has the one value that is supported.
  template <class T>
  void only(const std::string& key, const T& supported) const {
    const T value = get<T>(key, supported);
    BLIPFT_USER_CHECK(value == supported, file_, ": ", prefix_, key, ": found ", nlohmann::json(value).dump(),
                      ", supported is ", nlohmann::json(supported).dump());
  }
  JsonFields section(const std::string& key) const {
    static const nlohmann::json kEmpty = nlohmann::json::object();
    const auto found = object_.find(key);
    const bool absent = found == object_.end() || found->is_null();
    return JsonFields(absent ? kEmpty : *found, file_, prefix_ + key + ".");
  }
  bool has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }
  /// Whether the file says null, where an absent key would mean a default.
  bool is_null(const std::string& key) const { return object_.contains(key) && object_[key].is_null(); }
  const std::string& file() const { return file_; }
  const std::string& prefix() const { return prefix_; }

 private:
  const nlohmann::json& object_;
  std::string file_, prefix_;
};

}  // namespace blipft
