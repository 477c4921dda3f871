// The table of contractions of the official VQA script (vqaEval.py).
#pragma once

#include <functional>
#include <map>
#include <string>

namespace blipft {

/// A word in small letters, and what it becomes: "dont" to "don't".
extern const std::map<std::string, std::string, std::less<>> vqa_contractions;

}  // namespace blipft
