// FamilySpec: facts about a model family for the parts of the program that do not know families.
#pragma once

#include <string>
#include <vector>

#include "blipft/pictures.h"
#include "blipft/tokenizer_rules.h"

namespace blipft {

/// The class of transformers that loads a folder of a family.
struct ModelClass {
  std::string name, module;                ///< "LlamaForCausalLM", "transformers.models.llama.modeling_llama"
  bool causal_lm = false;                  ///< AutoModelForCausalLM finds it
  bool seq_to_seq = false;                 ///< AutoModelForSeq2SeqLM finds it
};

/// The rule by which a family ties the weight of its head to its embeddings.
struct TieRule {
  struct Names {
    std::string head, embeddings;          ///< "lm_head.weight", "model.embed_tokens.weight"
  };
  std::vector<Names> weights;              ///< the two weights in checkpoints, for each kind of language model
  bool by_default = false;                 ///< the value of tie_word_embeddings if config.json has none
  bool flag_at_root = false;               ///< tie_word_embeddings of the whole file takes precedence over text_config's
  bool flag_has_other_meaning = false;     ///< saved models keep tie_word_embeddings: it also changes the model (T5)
};

struct FamilySpec {
  std::string model_type;                  ///< as config.json names it
  ModelClass saved_as;
  TokenizerRules tokenizer = {};
  TieRule tie = {};
  /// Prefixes of the names of tensors outside of our model. Saved models keep these tensors unchanged.
  std::vector<std::string> kept_tensors = {};
  /// The processor of a folder with pictures ("Blip2Processor"). transformers 5 generates only if config.json names the
  /// token of a picture and processor_config.json the number of query tokens. Empty: neither is needed.
  std::string processor_class = {};
  /// The settings of the image processor for keys that the folder's file lacks.
  ImageProcessor pixels = {};
  PictureTokens picture_tokens = {};       ///< of a model that reads pictures anywhere in a text
};

/// Returns the family that config.json of `model_directory` names. Throws UserError as make_model() does.
const FamilySpec& family_of(const std::string& model_directory);
/// Returns null if no family has this model_type.
const FamilySpec* find_family(const std::string& model_type);

}  // namespace blipft
