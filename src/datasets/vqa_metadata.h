// Questions about pictures, from the files of VQA and LAVIS.
#pragma once

#include <string>

#include "datasets/image_metadata.h"

namespace blipft {

/// Returns true if `path` is a JSON file of VQA: an object with "questions", or with "annotations" that have answers.
bool is_vqa(const std::string& path);
/// Reads questions and their answers from v2_OpenEnded_mscoco_train2014_questions.json and
/// v2_mscoco_train2014_annotations.json in the same folder; `path` is one of the two. With settings.for_prompts the
/// annotations may be absent.
PictureList read_vqa(const std::string& path, const TextSettings& settings);

/// Returns true if `path` is a JSON list of LAVIS: its first record has "image", and "question" or "caption".
bool is_lavis(const std::string& path);
/// Reads such a list by LAVIS's names of the keys, unless settings.keys names others.
PictureList read_lavis(const std::string& path, const TextSettings& settings);

}  // namespace blipft
