// Scores of one answer against references: the VQA accuracy, SQuAD's exact match and F1, and plain equality.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace blipft {

/// An answer of a model as the official VQA script (vqaEval.py) changes it before it compares: without punctuation and
/// articles, number words as digits, contractions with their apostrophes.
std::string vqa_normalized(std::string_view answer);
/// What that script takes out of the annotators' answers, where these are not all the same: punctuation alone.
std::string vqa_without_punctuation(std::string_view answer);
/// Returns the mean over the annotators of min(1, others who gave the model's answer / 3), 0 to 1. `answers` has one
/// answer of each annotator. If these differ, both sides are compared after vqa_normalized(), else as they are.
double vqa_accuracy(std::string_view answer, const std::vector<std::string>& answers);
/// Returns the same mean as LAVIS and earlier versions of the official script compute it: the model's answer is always
/// normalized, the annotators' answers lose punctuation alone, and only if they differ.
double vqa_accuracy_lavis(std::string_view answer, const std::vector<std::string>& answers);

/// Small letters, no ASCII punctuation, no articles, single blanks: SQuAD's evaluate script.
std::string squad_normalized(std::string_view answer);
/// 1 where some reference is the same after squad_normalized(), else 0.
double squad_exact(std::string_view answer, const std::vector<std::string>& references);
/// The best F1 of words over the references, after squad_normalized(); 0 to 1.
double squad_f1(std::string_view answer, const std::vector<std::string>& references);

/// 1 where some reference is the very same text, else 0.
double exact_match(std::string_view answer, const std::vector<std::string>& references);

}  // namespace blipft
