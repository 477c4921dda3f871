// Reads LLaMA's config.json, which is also a part of other families' files.
#pragma once

#include "models/families/decoder/decoder.h"

namespace blipft {

class JsonFields;

DecoderConfig read_llama(const JsonFields& fields);

}  // namespace blipft
