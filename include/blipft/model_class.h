// How transformers calls the model that it reads from a folder of one of our families.
#pragma once

#include <string>
#include <vector>

namespace blipft {

struct ModelClass {
  std::string name, module;                ///< "LlamaForCausalLM", "transformers.models.llama.modeling_llama"
  bool causal_lm = false;                  ///< AutoModelForCausalLM finds it
  bool seq_to_seq = false;                 ///< AutoModelForSeq2SeqLM finds it
  /// How the names of tensors begin that the folder has for parts that are not ours: a saved model has them as they are.
  std::vector<std::string> beside;
};

/// Of the family that config.json of `model_directory` names. Throws UserError as make_model() does.
ModelClass model_class(const std::string& model_directory);

}  // namespace blipft
