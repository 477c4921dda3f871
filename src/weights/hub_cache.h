// The local cache of the Hugging Face hub: finds downloaded models by name.
#pragma once

#include <string>

namespace blipft {

/// Returns true if `text` has the form of a model name on the hub: two words with a slash, such as Qwen/Qwen2.5-0.5B.
bool is_hub_name(const std::string& text);
/// Returns the hub's cache folder, from HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME as in huggingface_hub; else in
/// ~/.cache.
std::string hub_cache();
/// Returns the folder of the newest download if `path` does not exist and is the name of a model in the hub's cache.
/// Otherwise returns `path`.
std::string folder_of_model(const std::string& path);
/// Returns the model's name if `path` is its folder in a hub's cache, else "".
std::string hub_name_of(const std::string& path);
/// Returns advice for messages: the cache lacks the model, and the command that downloads it.
std::string hub_advice(const std::string& name);

}  // namespace blipft
