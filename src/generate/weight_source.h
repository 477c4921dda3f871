// Whose weights generate texts: a model folder's, an adapter's beside its base, or a checkpoint's.
#pragma once

#include <string>

#include "blipft/config.h"

namespace blipft {

struct WeightSource {
  Config config;                           ///< model.path, and adapter as it is on top of it; nothing is frozen by name
  std::string checkpoint;                  ///< a folder whose weights replace those of the model; empty: none
  std::string text;                        ///< for people: "the adapter in runs/x/adapter on NousResearch/Llama-2-7b"
  std::string warning;                     ///< for people, where these may not be the weights that they mean; else empty
};

/// What generate.weights names. Throws UserError where nothing is there, or what is there is none of these.
WeightSource weight_source(const Config& config);

}  // namespace blipft
