// Scores of one answer against references: VQA accuracy, SQuAD's exact match and F1, and plain equality.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace blipft {

/// Normalizes a model's answer as the official VQA script (vqaEval.py) does before it compares: removes punctuation and
/// articles, writes number words as digits, and adds missing apostrophes to contractions.
std::string vqa_normalized(std::string_view answer);
/// Removes punctuation as the script does for the annotators' answers if these are not all equal.
std::string vqa_without_punctuation(std::string_view answer);
/// Returns the mean over the annotators of min(1, others who gave the model's answer / 3), 0 to 1. `answers` has one
/// answer per annotator. If these answers differ, all answers are compared after vqa_normalized(), else unchanged.
double vqa_accuracy(std::string_view answer, const std::vector<std::string>& answers);
/// Returns the accuracy as LAVIS and earlier versions of the official script compute it: the model's answer is always
/// normalized; the annotators' answers lose only punctuation, and only if they differ.
double vqa_accuracy_lavis(std::string_view answer, const std::vector<std::string>& answers);

/// Normalizes as SQuAD's evaluate script does: lowercase, no ASCII punctuation, no articles, single blanks.
std::string squad_normalized(std::string_view answer);
/// Returns 1 if a reference equals the answer after squad_normalized(), else 0.
double squad_exact(std::string_view answer, const std::vector<std::string>& references);
/// Returns the highest word F1 over the references after squad_normalized(), 0 to 1.
double squad_f1(std::string_view answer, const std::vector<std::string>& references);

/// Returns 1 if a reference is exactly equal to the answer, else 0.
double exact_match(std::string_view answer, const std::vector<std::string>& references);

}  // namespace blipft
