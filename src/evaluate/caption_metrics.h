// CIDEr-D, BLEU and ROUGE-L of captions, as pycocoevalcap 1.2 computes them, in double precision.
//
// All texts are results of PtbTokenizer::words(): tokens separated by blanks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace blipft {

/// The caption of one picture and its references, tokenized.
struct TokenizedCaption {
  std::string candidate;
  std::vector<std::string> references;  ///< at least one
};

struct CaptionScore {
  double value = 0;                ///< score of the whole set
  std::vector<double> by_caption;  ///< score of each caption, in order
};

/// CIDEr-D with n-grams of 1 to 4 words, sigma 6; 0 to 10. Document frequencies are counted in the references of this
/// set: scores of two sets cannot be averaged, and a set of one picture scores 0.
CaptionScore cider_d(const std::vector<TokenizedCaption>& captions);

/// Corpus BLEU-1 to BLEU-4 with the closest reference length; 0 to 1.
std::array<CaptionScore, 4> bleu(const std::vector<TokenizedCaption>& captions);

/// ROUGE-L with beta 1.2, best precision and best recall over the references; 0 to 1.
CaptionScore rouge_l(const std::vector<TokenizedCaption>& captions);

}  // namespace blipft
