// LLaMA's config.json, which other families contain.
#pragma once

#include "models/families/decoder/decoder.h"

namespace blipft {

class JsonFields;

DecoderConfig read_llama(const JsonFields& fields);

}  // namespace blipft
