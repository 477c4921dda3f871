// Questions about pictures as VQA's and LAVIS's files have them.
#pragma once

#include <string>

#include "datasets/image_metadata.h"

namespace blipft {

/// Whether `path` is a JSON file of VQA's: an object with "questions", or with "annotations" that have answers.
bool is_vqa(const std::string& path);
/// Questions, with the answers of the annotations beside them: v2_OpenEnded_mscoco_train2014_questions.json and
/// v2_mscoco_train2014_annotations.json, either of which `path` may be. With settings.for_prompts the latter may be absent.
PictureList read_vqa(const std::string& path, const TextSettings& settings);

/// Whether `path` is a JSON list of LAVIS's: its first record has "image", and "question" or "caption".
bool is_lavis(const std::string& path);
/// By its own names of the keys, where settings.keys says no others.
PictureList read_lavis(const std::string& path, const TextSettings& settings);

}  // namespace blipft
