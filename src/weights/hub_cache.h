// Models of the Hugging Face hub that were downloaded before, by their names.
#pragma once

#include <string>

namespace blipft {

/// Whether a text may be the name of a model on the hub, as Qwen/Qwen2.5-0.5B is: two words with one slash between.
bool is_hub_name(const std::string& text);
/// The folder that the hub's own programs keep models in, by HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME; else below ~/.cache.
std::string hub_cache();
/// `path`, or, where that is no folder but the name of a model in the hub's cache, the folder of its newest download. A
/// name that is not in the cache comes back as it is.
std::string folder_of_model(const std::string& path);
/// The name of the model whose folder in a hub's cache `path` is; empty: it is none.
std::string hub_name_of(const std::string& path);
/// "it is not in CACHE; download it with ...", for messages.
std::string hub_advice(const std::string& name);

}  // namespace blipft
