// The rules by which Stanford's PTB tokenizer 3.4.1 splits an English text, and the action for each token.
#pragma once

#include <vector>

#include "evaluate/scanner_rules.h"

namespace blipft {

/// The conversion of the matched text into a token.
enum class PtbAction {
  keep,              ///< the text is the token
  skip,              ///< no token
  word,              ///< soft hyphens are removed
  split_last_2,      ///< the last two characters become the next token: gon|na
  split_last_3,      ///< the last three characters become the next token: can|not
  left_quote,        ///< ' to `, " to ``
  right_quote,       ///< " to ''
  dash,              ///< becomes --
  hyphens,           ///< three or four become --
  ellipsis,          ///< becomes ...
  ampersand,         ///< &amp; becomes &
  less,              ///< &lt; becomes <
  greater,           ///< &gt; becomes >
  joined_spaces,     ///< blanks become U+00A0, so that the text stays one token
  telephone,         ///< blanks become U+00A0, and brackets are replaced as below
  brackets,          ///< ( becomes -LRB- and so on
  fraction,          ///< ½ becomes 1/2
  currency,          ///< € becomes $
  sentence_end,      ///< an abbreviation whose period also ends the sentence: the period is a token as well
  sentence_end_one,  ///< like sentence_end, but a single letter loses its period
};

struct PtbRules {
  PtbRules();
  ScannerRules rules;
  std::vector<PtbAction> actions;  ///< action of each rule
};

}  // namespace blipft
