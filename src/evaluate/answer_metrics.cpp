#include "evaluate/answer_metrics.h"

#include <algorithm>
#include <functional>
#include <map>

#include "text/python_text.h"
#include "text/letter_case.h"
#include "text/unicode.h"

namespace blipft {
namespace {

constexpr std::string_view vqa_punctuation = ";/[]\"{}()=+\\_-><@`,?!";
// Python's string.punctuation.
constexpr std::string_view ascii_punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

// The script passes re.UNICODE to re.sub() as the maximum number of replacements; its value is 32.
constexpr int64_t max_periods = 32;

// {lowercase word: replacement}, including the official script's odd entry for "somebody'd".
const std::map<std::string, std::string, std::less<>> contractions = {
    {"'ow'sat", "'ow's'at"}, {"'ows'at", "'ow's'at"}, {"aint", "ain't"}, {"arent", "aren't"}, {"cant", "can't"},
    {"couldn'tve", "couldn't've"}, {"couldnt", "couldn't"}, {"couldnt've", "couldn't've"}, {"couldve", "could've"},
    {"didnt", "didn't"}, {"doesnt", "doesn't"}, {"dont", "don't"}, {"hadn'tve", "hadn't've"}, {"hadnt", "hadn't"},
    {"hadnt've", "hadn't've"}, {"hasnt", "hasn't"}, {"havent", "haven't"}, {"he'dve", "he'd've"}, {"hed", "he'd"},
    {"hed've", "he'd've"}, {"hes", "he's"}, {"howd", "how'd"}, {"howll", "how'll"}, {"hows", "how's"},
    {"isnt", "isn't"}, {"it'dve", "it'd've"}, {"itd", "it'd"}, {"itd've", "it'd've"}, {"itll", "it'll"},
    {"let's", "let's"}, {"maam", "ma'am"}, {"mightn'tve", "mightn't've"}, {"mightnt", "mightn't"},
    {"mightnt've", "mightn't've"}, {"mightve", "might've"}, {"mustnt", "mustn't"}, {"mustve", "must've"},
    {"neednt", "needn't"}, {"notve", "not've"}, {"oclock", "o'clock"}, {"oughtnt", "oughtn't"},
    {"ow's'at", "'ow's'at"}, {"shant", "shan't"}, {"she'dve", "she'd've"}, {"she's", "she's"},
    {"shed've", "she'd've"}, {"shouldn'tve", "shouldn't've"}, {"shouldnt", "shouldn't"},
    {"shouldnt've", "shouldn't've"}, {"shouldve", "should've"}, {"somebody'd", "somebodyd"},
    {"somebody'dve", "somebody'd've"}, {"somebodyd've", "somebody'd've"}, {"somebodyll", "somebody'll"},
    {"somebodys", "somebody's"}, {"someone'dve", "someone'd've"}, {"someoned", "someone'd"},
    {"someoned've", "someone'd've"}, {"someonell", "someone'll"}, {"someones", "someone's"},
    {"something'dve", "something'd've"}, {"somethingd", "something'd"}, {"somethingd've", "something'd've"},
    {"somethingll", "something'll"}, {"thats", "that's"}, {"there'dve", "there'd've"}, {"thered", "there'd"},
    {"thered've", "there'd've"}, {"therere", "there're"}, {"theres", "there's"}, {"they'dve", "they'd've"},
    {"theyd", "they'd"}, {"theyd've", "they'd've"}, {"theyll", "they'll"}, {"theyre", "they're"},
    {"theyve", "they've"}, {"twas", "'twas"}, {"wasnt", "wasn't"}, {"we'dve", "we'd've"}, {"wed've", "we'd've"},
    {"werent", "weren't"}, {"weve", "we've"}, {"whatll", "what'll"}, {"whatre", "what're"}, {"whats", "what's"},
    {"whatve", "what've"}, {"whens", "when's"}, {"whered", "where'd"}, {"wheres", "where's"}, {"whereve", "where've"},
    {"who'dve", "who'd've"}, {"whod", "who'd"}, {"whod've", "who'd've"}, {"wholl", "who'll"}, {"whos", "who's"},
    {"whove", "who've"}, {"whyll", "why'll"}, {"whyre", "why're"}, {"whys", "why's"}, {"wont", "won't"},
    {"wouldn'tve", "wouldn't've"}, {"wouldnt", "wouldn't"}, {"wouldnt've", "wouldn't've"}, {"wouldve", "would've"},
    {"y'all'dve", "y'all'd've"}, {"y'alld've", "y'all'd've"}, {"y'allll", "y'all'll"}, {"yall", "y'all"},
    {"yall'd've", "y'all'd've"}, {"yall'll", "y'all'll"}, {"you'dve", "you'd've"}, {"youd", "you'd"},
    {"youd've", "you'd've"}, {"youll", "you'll"}, {"youre", "you're"}, {"youve", "you've"},
};

bool is_digit_at(std::string_view text, size_t at) {
  return at < text.size() && is_decimal_digit(unicode::next_code_point(text, at));
}

// Returns true if a comma stands between two digits.
bool has_comma_in_number(std::string_view text) {
  bool after_digit = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = unicode::next_code_point(text, at);
    if (c == ',' && after_digit && is_digit_at(text, at)) return true;
    after_digit = is_decimal_digit(c);
  }
  return false;
}

std::string without_periods(std::string_view text) {
  std::string out;
  int64_t left = max_periods;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '.' && left > 0 && !is_digit_at(text, at + 1)) --left;
    else out += text[at];
  }
  return out;
}

bool is_article(std::string_view word) { return word == "a" || word == "an" || word == "the"; }

// Returns the digits for a number word, or the word itself. As in the script, "none" is 0.
std::string number_for(const std::string& word) {
  static const std::map<std::string, std::string> numbers{{"none", "0"},  {"zero", "0"},  {"one", "1"},  {"two", "2"},
                                                          {"three", "3"}, {"four", "4"},  {"five", "5"}, {"six", "6"},
                                                          {"seven", "7"}, {"eight", "8"}, {"nine", "9"}, {"ten", "10"}};
  const auto found = numbers.find(word);
  return found == numbers.end() ? word : found->second;
}

void append_word(std::string& out, std::string_view word) {
  if (!out.empty()) out += ' ';
  out += word;
}

// Replaces articles that are whole words (as Python's \b defines words) by a blank.
std::string without_articles(std::string_view text) {
  std::string out, word;
  const auto flush = [&] {
    out += is_article(word) ? " " : word;
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t from = at;
    if (unicode::is_word_character(unicode::next_code_point(text, at))) {
      word += text.substr(from, at - from);
    } else {
      flush();
      out += text.substr(from, at - from);
    }
  }
  flush();
  return out;
}

double f1_of(const std::string& answer, const std::string& reference) {
  const auto said = split_words(answer), wanted = split_words(reference);
  // SQuAD 2.0: an empty answer is correct if the reference is empty too.
  if (said.empty() || wanted.empty()) return said.empty() && wanted.empty() ? 1 : 0;
  std::map<std::string_view, int64_t> left;
  for (auto word : wanted) ++left[word];
  const auto common = std::count_if(said.begin(), said.end(), [&](auto word) { return left[word]-- > 0; });
  if (common == 0) return 0;
  const double precision = static_cast<double>(common) / static_cast<double>(said.size());
  const double recall = static_cast<double>(common) / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

// Returns the mean over the annotators of min(1, matching answers of the others / 3). agrees[i] is true if annotator i
// gave the model's answer.
double mean_agreement(const std::vector<bool>& agrees) {
  const auto agreeing = std::count(agrees.begin(), agrees.end(), true);
  double sum = 0;
  for (bool own : agrees) sum += std::min(1.0, static_cast<double>(agreeing - (own ? 1 : 0)) / 3);
  return sum / static_cast<double>(agrees.size());
}

}  // namespace

std::string vqa_without_punctuation(std::string_view answer) {
  const bool number = has_comma_in_number(answer);
  std::string out(answer);
  for (char p : vqa_punctuation) {
    const bool next_to_blank = answer.find(std::string{p, ' '}) != std::string_view::npos ||
                              answer.find(std::string{' ', p}) != std::string_view::npos;
    out = replace_all(out, p, next_to_blank || number ? "" : " ");
  }
  return without_periods(out);
}

std::string vqa_normalized(std::string_view answer) {
  const std::string text = replace_all(replace_all(answer, '\n', " "), '\t', " ");
  const std::string lowered = in_small_letters(std::string_view(vqa_without_punctuation(unicode::stripped(text))));
  std::string out;
  for (std::string_view word : split_words(lowered)) {
    const std::string number = number_for(std::string(word));
    if (is_article(number)) continue;
    const auto found = contractions.find(number);
    append_word(out, found == contractions.end() ? number : found->second);
  }
  return out;
}

double vqa_accuracy_lavis(std::string_view answer, const std::vector<std::string>& answers) {
  const std::string said = vqa_normalized(answer);
  const bool all_same = std::all_of(answers.begin(), answers.end(), [&](auto& a) { return a == answers[0]; });
  std::vector<bool> agrees;
  for (const auto& given : answers) agrees.push_back((all_same ? given : vqa_without_punctuation(given)) == said);
  return mean_agreement(agrees);
}

double vqa_accuracy(std::string_view answer, const std::vector<std::string>& answers) {
  const auto in_one_line = [](std::string_view text) {
    return std::string(unicode::stripped(replace_all(replace_all(text, '\n', " "), '\t', " ")));
  };
  std::vector<std::string> given;
  for (const std::string& one : answers) given.push_back(in_one_line(one));
  std::string said = in_one_line(answer);
  if (std::any_of(given.begin(), given.end(), [&](const std::string& one) { return one != given[0]; })) {
    said = vqa_normalized(said);
    for (std::string& one : given) one = vqa_normalized(one);
  }
  std::vector<bool> agrees;
  for (const std::string& one : given) agrees.push_back(one == said);
  return mean_agreement(agrees);
}

std::string squad_normalized(std::string_view answer) {
  std::string kept;
  for (char c : in_small_letters(answer))
    if (ascii_punctuation.find(c) == std::string_view::npos) kept += c;
  std::string out;
  const std::string without = without_articles(kept);
  for (std::string_view word : split_words(without)) append_word(out, word);
  return out;
}

double squad_exact(std::string_view answer, const std::vector<std::string>& references) {
  const std::string said = squad_normalized(answer);
  return std::any_of(references.begin(), references.end(), [&](auto& r) { return squad_normalized(r) == said; });
}

double squad_f1(std::string_view answer, const std::vector<std::string>& references) {
  const std::string said = squad_normalized(answer);
  double best = 0;
  for (const auto& reference : references) best = std::max(best, f1_of(said, squad_normalized(reference)));
  return best;
}

double exact_match(std::string_view answer, const std::vector<std::string>& references) {
  return std::find(references.begin(), references.end(), answer) != references.end();
}

}  // namespace blipft
