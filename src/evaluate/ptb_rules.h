// The rules by which Stanford's PTB tokenizer 3.4.1 divides an English text, and what becomes of each token.
#pragma once

#include <vector>

#include "evaluate/scanner_rules.h"

namespace blipft {

/// What is done with the text that a rule found.
enum class PtbAction {
  keep,              ///< the token as it is
  skip,              ///< no token
  word,              ///< without soft hyphens
  split_last_2,      ///< the last two characters are the next token's: gon|na
  split_last_3,      ///< can|not
  left_quote,        ///< ' to `, " to ``
  right_quote,       ///< " to ''
  dash,              ///< --
  hyphens,           ///< three or four become --
  ellipsis,          ///< ...
  ampersand,         ///< &amp; is &
  less,              ///< &lt; is <
  greater,           ///< &gt; is >
  joined_spaces,     ///< blanks become U+00A0, so that it stays one token
  telephone,         ///< the same, and brackets as below
  brackets,          ///< -LRB- for ( and so on
  fraction,          ///< ½ is 1/2
  currency,          ///< € is $
  sentence_end,      ///< an abbreviation whose last period is also the sentence's: a token of its own
  sentence_end_one,  ///< the same; of a single letter the period is no part
};

struct PtbRules {
  PtbRules();
  ScannerRules rules;
  std::vector<PtbAction> actions;  ///< of each rule
};

}  // namespace blipft
