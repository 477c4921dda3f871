#include "evaluate/ptb_rules.h"

#include <string>

#include "text/unicode.h"

namespace blipft {
namespace {

constexpr uint32_t last_of_plane_0 = 0xFFFF;  // the tokenizer knows only the characters of plane 0

// The digit zero of each script with decimal digits.
constexpr uint32_t zeros[] = {0x30,   0x660,  0x6F0,  0x7C0,  0x966,  0x9E6,  0xA66,  0xAE6,  0xB66,
                              0xBE6,  0xC66,  0xCE6,  0xD66,  0xE50,  0xED0,  0xF20,  0x1040, 0x1090,
                              0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40,
                              0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xAA50, 0xABF0, 0xFF10};

// Marks and signs that are parts of words, in addition to letters. The list is the tokenizer's own; it ends with Lao.
const std::vector<CodePoints> word_marks = {
    {0xAD, 0xAD},   {0x237, 0x24F}, {0x2C2, 0x2C5}, {0x2D2, 0x2DF}, {0x2E5, 0x2FF}, {0x300, 0x36F}, {0x370, 0x37D},
    {0x384, 0x385}, {0x3CF, 0x3CF}, {0x3F6, 0x3F6}, {0x3FC, 0x3FF}, {0x483, 0x487}, {0x4CF, 0x4CF}, {0x4F6, 0x4FF},
    {0x510, 0x525}, {0x55A, 0x55F}, {0x591, 0x5BD}, {0x5BF, 0x5BF}, {0x5C1, 0x5C2}, {0x5C4, 0x5C5}, {0x5C7, 0x5C7},
    {0x615, 0x61A}, {0x63B, 0x63F}, {0x64B, 0x65E}, {0x670, 0x670}, {0x6D6, 0x6EF}, {0x6FA, 0x6FF}, {0x70F, 0x70F},
    {0x711, 0x711}, {0x730, 0x74F}, {0x750, 0x77F}, {0x7A6, 0x7B1}, {0x7CA, 0x7F5}, {0x7FA, 0x7FA}, {0x900, 0x903},
    {0x93C, 0x93C}, {0x93E, 0x94E}, {0x951, 0x955}, {0x962, 0x963}, {0x981, 0x983}, {0x9BC, 0x9C4}, {0x9C7, 0x9C8},
    {0x9CB, 0x9CD}, {0x9D7, 0x9D7}, {0x9E2, 0x9E3}, {0xA01, 0xA03}, {0xA3C, 0xA3C}, {0xA3E, 0xA4F}, {0xA81, 0xA83},
    {0xABC, 0xACF}, {0xB82, 0xB82}, {0xBBE, 0xBC2}, {0xBC6, 0xBC8}, {0xBCA, 0xBCD}, {0xC01, 0xC03}, {0xC3E, 0xC56},
    {0xD3E, 0xD44}, {0xD46, 0xD48}, {0xE30, 0xE3A}, {0xE47, 0xE4E}, {0xEB1, 0xEBC}, {0xEC8, 0xECD}};

// Signs that form a token alone. U+2190 to U+2BFF are arrows, mathematics, boxes, dingbats and the like.
const std::vector<CodePoints> symbols = {
    {'+', '+'},       {'%', '&'},       {'~', '~'},       {'^', '^'},       {'|', '|'},       {'\\', '\\'},
    {0xA6, 0xA9},     {0xAC, 0xAC},     {0xAE, 0xBA},     {0xD7, 0xD7},     {0xF7, 0xF7},     {0x387, 0x387},
    {0x5BE, 0x5BE},   {0x5C0, 0x5C0},   {0x5C3, 0x5C3},   {0x5C6, 0x5C6},   {0x5F3, 0x5F4},   {0x600, 0x603},
    {0x606, 0x60A},   {0x60C, 0x60C},   {0x614, 0x614},   {0x61B, 0x61B},   {0x61E, 0x61E},   {0x66A, 0x66A},
    {0x66D, 0x66D},   {0x703, 0x70D},   {0x7F6, 0x7F8},   {0x964, 0x965},   {0xE4F, 0xE4F},   {0x1FBD, 0x1FBD},
    {0x2016, 0x2017}, {0x2020, 0x2023}, {0x2030, 0x2038}, {0x203B, 0x203B}, {0x203E, 0x2042}, {0x2044, 0x2044},
    {0x207A, 0x207F}, {0x208A, 0x208E}, {0x2100, 0x214F}, {0x2190, 0x2BFF}, {0x3012, 0x3012}, {0x30FB, 0x30FB},
    {0xFF01, 0xFF0F}, {0xFF1A, 0xFF20}, {0xFF3B, 0xFF40}, {0xFF5B, 0xFF65}};

std::vector<CodePoints> ranges_of(bool (*holds)(uint32_t)) {
  std::vector<CodePoints> out;
  for (uint32_t c = 0; c <= last_of_plane_0; ++c) {
    if (!holds(c)) continue;
    if (!out.empty() && out.back().last + 1 == c) out.back().last = c;
    else out.push_back({c, c});
  }
  return out;
}

void name_characters(ScannerRules& rules) {
  const auto letters = ranges_of(unicode::is_letter);
  std::vector<CodePoints> digits;
  for (uint32_t zero : zeros) digits.push_back({zero, zero + 9});
  auto letters_and_digits = letters;
  letters_and_digits.insert(letters_and_digits.end(), digits.begin(), digits.end());
  auto word_letters = letters;
  word_letters.insert(word_letters.end(), word_marks.begin(), word_marks.end());
  rules.name_class("letter", letters);
  rules.name_class("digit", digits);
  rules.name_class("alnum", letters_and_digits);
  rules.name_class("word letter", word_letters);
  rules.name_class("symbol", symbols);
  rules.name_class("space", {{' ', ' '}, {'\t', '\t'}, {0xA0, 0xA0}, {0x2000, 0x200A}, {0x3000, 0x3000}});
  rules.name_class("newline", {{'\n', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}});
  rules.name_pattern("blank", "[<space><newline>]");
  rules.name_class("eyes", {{'^', '^'}, {'x', 'x'}, {'=', '='}, {'~', '~'}, {'<', '<'}, {'>', '>'}});  // eyes of ^_^
  rules.name_class("gap", {{' ', ' '}, {'\t', '\n'}, {'\f', '\r'}});
  // Straight and curly apostrophes, also at the position of Windows-1252 (U+0092); `any apostrophe` adds opening ones.
  rules.name_pattern("apostrophe", "['\\x0092\\x2019]|&apos;");
  rules.name_pattern("any apostrophe", "<apostrophe>|[`\\x0091\\x2018\\x201b]");
  rules.name_pattern("hyphen", "[-_\\x058a\\x2010\\x2011]");
  rules.name_pattern("comma", "[,;:\\x3001]");
}

void name_words(ScannerRules& rules) {
  rules.name_pattern("part", "(<word letter>|&[aeiouAEIOU](acute|grave|uml);)");
  rules.name_pattern("word", "<part>(<part>|<digit>)*([.!?]<part>(<part>|<digit>)*)*");
  // Elisions such as d'Avignon, and words and numbers joined by hyphens.
  rules.name_pattern("elided", "([dDoOlL](<any apostrophe>)<alnum>)?");
  rules.name_pattern("number", "(<digit>+|<digit>*([.:,\\x00ad\\x066b\\x066c]<digit>+)+)");
  rules.name_pattern("signed number", "[-+]?<number>");
  rules.name_pattern("joined", "<elided><alnum>+(<hyphen><elided><alnum>+)*");
  rules.name_pattern("firm", "[A-Z]+(([+&]|&amp;)[A-Z]+)+");
  rules.name_pattern("acronym",
                     "[A-Za-z](\\.[A-Za-z])+|(Canada|Sino|Korean|EU|Japan|non)-U\\.S|U\\.S\\.-(U\\.K|U\\.S\\.S\\.R)");
  rules.name_pattern("compound", "[A-Za-z0-9][A-Za-z0-9.,\\x00ad]*(-([A-Za-z0-9\\x00ad]+|(<acronym>)\\.))+");
  rules.name_pattern("verb ending", "(<apostrophe>)([msdMSD]|re|ve|ll)");
  rules.name_pattern("not", "n(<any apostrophe>)t");
  rules.name_pattern("attribute name", "[A-Za-z][A-Za-z0-9_:.-]*");
  rules.name_pattern("quoted", "['\"][^\\x000d\\x000a'\"]*['\"]");
  rules.name_pattern("tag",
                     "\\<([!?][A-Za-z-][^>\\x000d\\x000a]*|"
                     "<attribute name>( +(<attribute name>( *= *<quoted>)?|<quoted>))* */?|/<attribute name>) *>");
  // Web addresses and mail addresses.
  rules.name_pattern("address", "[^<gap>\"\\<>|()]");
  rules.name_pattern("address end", "[^<gap>\"\\<>|.!?(){},-]");
  // The range from comma to underscore is a mistake of the original tokenizer: it excludes capital letters and digits
  // from host names.
  rules.name_pattern("host part", "[^<gap>\"`'\\<>|.!?(){},-_$]+");
  rules.name_pattern("mail host part", "[^<gap>\"\\<>|(){}.\\x00a0]+");
  rules.name_pattern(
      "file type",
      "bat|bmp|c|class|cgi|cpp|dll|doc|docx|exe|gif|gz|h|htm|html|jar|java|jpeg|jpg|mov|mp3|pdf|php|pl|png|ppt|ps|"
      "py|sql|tar|txt|wav|x|xml|zip");
}

// Abbreviations, counted in financial news of 1987. A capital letter in brackets matches only a capital letter.
void name_abbreviations(ScannerRules& rules) {
  rules.name_pattern("months and days", "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|Mon|Tues?|Wed|Thu(rs)?|Fri");
  rules.name_pattern(
      "states",
      "Ala|Ariz|[A]z|[A]rk|Calif|Colo|Conn|Ct|Dak|[D]el|Fla|Ga|[I]ll|Ind|Kans?|Ky|[L]a|[M]ass|Md|Mich|Minn|"
      "[M]iss|Mo|Mont|Neb|Nev|Okla|[O]re|[P]a|Penn|Tenn|[T]ex|Va|Vt|[W]ash|Wisc?|Wyo");
  rules.name_pattern("companies", "Inc|Cos?|Corp|Pp?t[ye]s?|Ltd|Plc|Rt|Bancorp|Bhd|Assn|Univ|Intl|Sys");
  // Inside a sentence, these abbreviations are followed by lowercase words.
  rules.name_pattern(
      "short before small",
      "(<months and days>|<states>|<companies>|tel|est|ext|sq|Jr|Sr|Bros|(Ed|Ph)\\.D|Blvd|Rd|Esq|etc|al|seq|Bldg)\\.");
  rules.name_pattern(
      "titles",
      "Mr|Mrs|Ms|[M]iss|Drs?|Profs?|Sens?|Reps?|Attys?|Lt|Col|Gen|Messrs|Govs?|Adm|Rev|Maj|Sgt|Cpl|Pvt|Capt|"
      "Ste?|Ave|Pres|Lieut|Hon|Brig|Co?mdr|Pfc|Spc|Supts?|Det|Mt|Ft|Adj|Adv|Asst|Assoc|Ens|Insp|Mlle|Mme|Msgr|"
      "Sfc");
  rules.name_pattern(
      "short before capital",
      "[A-Za-z]|<titles>|vs|[v]|Alex|Wm|Jos|Cie|a\\.k\\.a|cf|TREAS|Ph|<acronym>|Invt|Elec|Natl|M[ft]g|Dept");
  rules.name_pattern("short before number", "(ca|figs?|prop|nos?|art|pp|op)\\.");
}

// If one of these words follows an acronym's period, the period also ends the sentence.
const char* const beginnings =
    "([A]bout|[A]ccording|[A]dditionally|[A]fter|[A]n|[A]|[A]s|[A]t|[B]ut|[E]arlier|[H]e|[H]er|[H]ere|[H]owever|[I]f|"
    "[I]n|[I]t|[L]ast|[M]any|[M]ore|[M]r\\.|[M]s\\.|[N]ow|[O]nce|[O]ne|[O]ther|[O]ur|[S]he|[S]ince|[S]o|[S]ome|"
    "[S]uch|[T]hat|[T]he|[T]heir|[T]hen|[T]here|[T]hese|[T]hey|[T]his|[W]e|[W]hen|[W]hile|[W]hat|[Y]et|[Y]ou|<tag>)";

struct Adder {
  ScannerRules& rules;
  std::vector<PtbAction>& actions;

  void operator()(PtbAction action, const std::string& pattern, const std::string& followed_by = "") const {
    rules.add(pattern, followed_by);
    actions.push_back(action);
  }
};
using enum PtbAction;

void add_words(const Adder& add) {
  add(keep, "c\\+\\+|[CcFf]#");
  add(split_last_3, "cannot|'twas");
  add(split_last_2, "'tis|gonna|gotta|lemme|gimme|wanna");
  add(joined_spaces, "<tag>");
  add(dash, "&(MD|mdash|ndash);|[\\x0096\\x0097\\x2013\\x2014\\x2015]");
  add(ampersand, "&amp;");
  add(keep, "&(HT|TL|UR|LR|QC|QL|QR|odq|cdq|#[0-9]+);");
  add(word, "<word>", "<verb ending>");
  add(word, "[A-Za-z\\x00ad]*[A-MO-Za-mo-z]\\x00ad*", "<not>");
  add(word, "<word>");
  // Words that begin or end with an apostrophe or contain one: 'em, O'Brien, Shi'ite, '20s.
  add(keep,
      "([lLdDjJ]|Dunkin|somethin|ol)(<apostrophe>)|(<apostrophe>)(n(<apostrophe>)?|em|till?|cause|[2-9]0s)|"
      "[A-HJ-XZn](<any apostrophe>)<letter>{2}<letter>*|<letter>+[aeiouyAEIOUY](<any apostrophe>)[aeiouA-Z]<letter>*|"
      "O(<any apostrophe>)o|cont'd\\.?|nor'easter|c'mon|e'er|s'mores|ev'ry|li'l|nat'l");
  add(keep, "y(<apostrophe>)", "<letter>");
  add(keep, "https?://[^<gap>\"\\<>|(){}]+<address end>");
  add(keep,
      "(www\\.([^<gap>\"\\<>|.!?(){},]+\\.)+[A-Za-z]{2,4}|(<host part>\\.)+(com|net|org|edu))"
      "(/<address>+<address end>)?");
  add(keep,
      "(\\<|&lt;)?[A-Za-z0-9][^<gap>\"\\<>|(){}\\x00a0]*@(<mail host part>\\.)*<mail host part>(>|&gt;)?");
  add(keep, "@[a-zA-Z_][a-zA-Z_0-9]*|#<part>+");
}

void add_numbers(const Adder& add) {
  add(right_quote, "<verb ending>", "[^A-Za-z]");
  add(right_quote, "<not>");
  add(keep, "<digit>{1,2}[-/]<digit>{1,2}[-/]<digit>{2,4}");
  add(word, "<signed number>");
  add(keep, "[\\x207a\\x207b\\x208a\\x208b]?([\\x2070\\x00b9\\x00b2\\x00b3\\x2074-\\x2079]+|[\\x2080-\\x2089]+)");
  add(joined_spaces, "(<digit>{1,4}[- \\x00a0])?<digit>{1,4}(\\\\?/|\\x2044)<digit>{1,4}");
  add(fraction, "[\\x00bc\\x00bd\\x00be\\x2153-\\x215e]");
  add(ampersand,
      "-(RRB|LRB|RCB|LCB|RSB|LSB)-|C\\.D\\.s|pro-|anti-|S(&|&amp;)P-500|S(&|&amp;)Ls|Cap(<apostrophe>)n|"
      "c(<apostrophe>)est");
  add(keep, "[A-Za-z0-9]+(-[A-Za-z]+){0,2}(\\\\?/[A-Za-z0-9]+(-[A-Za-z]+){0,2}){1,2}");
  add(keep, "[A-Z]*$|#");
  add(currency, "[\\x00a2\\x00a3\\x00a4\\x00a5\\x0080\\x20a0\\x20ac\\x060b\\x0e3f\\x20a4\\xffe0\\xffe1\\xffe5\\xffe6]");
}

void add_abbreviations(const Adder& add) {
  add(sentence_end_one, "(<acronym>|[A-Za-z])\\.", std::string("<blank>+") + beginnings + "<blank>");
  add(keep, "<short before number>", "<blank>?<digit>");
  add(keep, "(pt[eyEY]|co)\\.", "<space>(ltd|lim)");
  add(sentence_end, "<short before small>", "<blank>(<blank>|[A-Z]|<tag>)");
  add(keep, "<short before small>", "[^][^]");
  add(sentence_end, "<short before small>");
  add(keep, "(<short before capital>)\\.");
  add(keep, "<short before capital>", "<space>");
  add(keep, "<acronym>", "<blank>");
  add(keep, "(<apostrophe>)[0-9][0-9]", "<blank>");
  add(keep, "(<word letter>|<digit>)+(\\.(<word letter>|<digit>)+)*\\.(<file type>)", "<blank>|[.?!,]");
  add(word, "<word>\\.", "<comma>");
  const std::string gap = "[- \\x00a0]", area = "[0-9]{2,4}", dialled = "(\\+\\+?)?";
  add(telephone, "(\\([0-9]{2,3}\\)[ \\x00a0]?|" + dialled + "(" + area + gap + ")?" + area + gap + ")[0-9]{3,4}" +
                     gap + "?[0-9]{3,5}|(" + dialled + area + "\\.)?" + area + "\\.[0-9]{3,4}\\.[0-9]{3,5}");
}

void add_signs(const Adder& add) {
  add(left_quote, "\"|&quot;", "[A-Za-z0-9$]");
  add(right_quote, "\"|&quot;");
  add(less, "\\<|&lt;");
  add(greater, ">|&gt;");
  add(brackets, "[\\<>]?[:;=][-o*']?[()DPdpO\\\\{@|\\[\\]]", "[^A-Za-z0-9]");
  add(brackets,
      "[<eyes>]\\.\\[\\^x=~\\<>\\]|[-'<eyes>]_[-'<eyes>]|\\([-'<eyes>][_.]?[-'<eyes>]\\)|"
      "\\(['<eyes>]-['`<eyes>]\\)");
  add(brackets, "[\\[\\](){}]");
  add(hyphens, "-+");
  add(ellipsis, "\\.{3,5}|(\\.[ \\x00a0]){2,4}\\.|[\\x0085\\x2026]");
  add(keep, "@+|#+|_+");
  add(keep, "\\*+|(\\\\\\*){1,3}");
  add(keep, "<comma>");
  add(keep, "[?!]+");
  add(keep, "[.\\x00a1\\x00bf\\x037e\\x0589\\x061f\\x06d4\\x0700-\\x0702\\x07fa\\x3002]");
  add(keep, "=");
  add(keep, "/");
}

void add_compounds(const Adder& add) {
  add(word, "<compound>\\.", "<comma>");
  add(word, "<compound>");
  add(keep, "<joined>\\.", "<comma>");
  add(keep, "<joined>");
  add(ampersand, "<firm>\\.", "<comma>");
  add(ampersand, "<firm>");
  add(left_quote, "'", "[A-Za-z][^ \\x0009\\x000a\\x000d\\x00a0]");
  add(right_quote, "<verb ending>");
  add(right_quote,
      "<apostrophe>|''|"
      "[`\\x2018\\x2019\\x201a\\x201b\\x201c\\x201d\\x0091-\\x0094\\x201e\\x201f\\x2039\\x203a\\x00ab\\x00bb]{1,2}");
  add(keep, "\\<\\<|>>");
  add(keep, "<symbol>");
  add(skip, "\\x0000|<space>+|[\\x200b\\x200e\\x200f\\xfeff]|<newline>|&nbsp;|\\x007f");
}

}  // namespace

PtbRules::PtbRules() {
  name_characters(rules);
  name_words(rules);
  name_abbreviations(rules);
  const Adder add{rules, actions};
  // If several rules match texts of the same length, the first rule wins: the order is part of the rules.
  add_words(add);
  add_numbers(add);
  add_abbreviations(add);
  add_signs(add);
  add_compounds(add);
}

}  // namespace blipft
