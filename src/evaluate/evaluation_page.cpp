// The HTML page with pictures, generated texts, references and scores.
#include <nlohmann/json.hpp>

#include <filesystem>

#include "blipft/error.h"
#include "blipft/evaluate.h"
#include "text/unicode.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;

// The frame of the page: style, search, sorting, and the cards, which are created when the reader scrolls to them.
// @METRICS@: [[name, higher is better], ...]; @THUMBNAILS@: [JPEG in base64, ...]; @SAMPLES@: [[id, link to the
// picture, prompt, candidate, [reference, ...], [score, ...], index of the thumbnail or -1 for none], ...].
constexpr std::string_view page_template = R"page(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
:root { color-scheme: light dark; --line: #d5d9e0; --soft: #5b6472; --card: #ffffff; --page: #f4f6f9; --ink: #1b2230;
  --mark: #0b62c4; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a4252; --soft: #9aa5b5; --card: #1c222d; --page: #12161d; --ink: #e7ebf2; --mark: #7db4ff; }
}
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.45 system-ui, sans-serif; background: var(--page); color: var(--ink); }
header, main { max-width: 1240px; margin: 0 auto; padding: 0 20px; }
h1 { font-size: 22px; margin: 22px 0 12px; overflow-wrap: anywhere; }
table { border-collapse: collapse; }
.summary th, .summary td { text-align: left; padding: 3px 18px 3px 0; }
.summary td:nth-child(n+4) { color: var(--soft); }
.number { font-variant-numeric: tabular-nums; }
#bar { position: sticky; top: 0; z-index: 1; background: var(--page); border-bottom: 1px solid var(--line);
  margin-top: 14px; }
#bar div { max-width: 1240px; margin: 0 auto; padding: 10px 20px; display: flex; flex-wrap: wrap; gap: 10px 16px;
  align-items: center; }
input[type=search] { flex: 1 1 260px; min-width: 0; }
input, select, button { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 5px 9px; }
.card { display: flex; gap: 18px; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  margin: 14px 0; padding: 14px; }
.card img { width: 240px; height: 180px; object-fit: contain; background: var(--page); border-radius: 6px; flex: none; }
.card a { flex: none; }
.card .texts { flex: 1; min-width: 0; overflow-wrap: anywhere; }
.card p { white-space: pre-wrap; margin: 0 0 6px; }
.card li { white-space: pre-wrap; margin: 0 0 1px; }
.card ul { margin: 0; padding-left: 20px; }
.candidate { font-size: 17px; font-weight: 600; }
.prompt, .label, .id { color: var(--soft); }
.label { font-size: 12px; text-transform: uppercase; letter-spacing: .06em; margin: 8px 0 2px; }
.scores { font-size: 13px; color: var(--soft); display: flex; flex-wrap: wrap; gap: 2px 14px; margin-top: 8px; }
.scores b { color: var(--mark); font-weight: 600; }
.missing { width: 240px; height: 180px; flex: none; display: flex; align-items: center; justify-content: center;
  text-align: center;
  color: var(--soft); border: 1px dashed var(--line); border-radius: 6px; padding: 10px; overflow-wrap: anywhere;
  font-size: 12px; }
@media (max-width: 640px) { .summary td:nth-child(n+4) { display: none; } }
@media (max-width: 640px) { .card { flex-direction: column; } .card img, .missing { width: 100%; } }
</style>
</head>
<body>
<header>
<h1>@HEADING@</h1>
<table class="summary"><tbody>
@SUMMARY@</tbody></table>
</header>
<div id="bar"><div>
<input id="search" type="search" placeholder="Search texts and ids" aria-label="Search texts and ids">
<label>Order <select id="order"></select></label>
<span id="count" aria-live="polite"></span>
</div></div>
<main id="list"></main>
<noscript><main><p>This page lists its samples with JavaScript.</p></main></noscript>
<script>
"use strict";
const metrics = @METRICS@;
const thumbnails = @THUMBNAILS@;
const samples = @SAMPLES@;
const [ID, PICTURE, PROMPT, CANDIDATE, REFERENCES, SCORES, THUMBNAIL] = [0, 1, 2, 3, 4, 5, 6];
const STEP = 40;  // cards made at a time
const list = document.getElementById("list"), count = document.getElementById("count");
const search = document.getElementById("search"), order = document.getElementById("order");
const haystacks = samples.map(s => [s[ID], s[PROMPT], s[CANDIDATE], ...s[REFERENCES]].join("\n").toLowerCase());
let shown = [], made = 0;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
function picture(sample) {
  const image = element("img");
  image.loading = "lazy";
  image.alt = "picture " + sample[ID];
  const missing = element("div", "missing", "no picture at " + sample[PICTURE]);
  image.addEventListener("error", () => image.replaceWith(missing));
  const own = sample[THUMBNAIL] >= 0, link = element("a");
  image.src = own ? "data:image/jpeg;base64," + thumbnails[sample[THUMBNAIL]] : sample[PICTURE];
  link.href = sample[PICTURE];
  link.append(image);
  return link;
}
function card(sample) {
  const out = element("article", "card"), texts = element("div", "texts");
  if (sample[PICTURE]) out.append(picture(sample));
  texts.append(element("div", "id", sample[ID]));
  if (sample[PROMPT]) texts.append(element("p", "prompt", sample[PROMPT]));
  texts.append(element("p", "candidate", sample[CANDIDATE] || "(empty)"));
  texts.append(element("div", "label", sample[REFERENCES].length === 1 ? "reference" : "references"));
  const references = element("ul");
  for (const text of sample[REFERENCES]) references.append(element("li", "", text));
  texts.append(references);
  const scores = element("div", "scores");
  metrics.forEach(([name], m) => {
    const one = element("span", "", name + " ");
    one.append(element("b", "number", sample[SCORES][m] === null ? "none" : sample[SCORES][m].toFixed(4)));
    scores.append(one);
  });
  texts.append(scores);
  out.append(texts);
  return out;
}
function more() {  // until two screens are ready below what is seen
  while (made < shown.length && list.getBoundingClientRect().bottom < 3 * innerHeight) {
    const next = shown.slice(made, made + STEP);
    list.append(...next.map(i => card(samples[i])));
    made += next.length;
  }
}
function fill() {
  const words = search.value.toLowerCase().split(/\s+/).filter(w => w);
  shown = samples.map((_, i) => i).filter(i => words.every(w => haystacks[i].includes(w)));
  if (order.value) {
    const [metric, sign] = order.value.split(" ").map(Number);
    shown.sort((a, b) => sign * (samples[a][SCORES][metric] - samples[b][SCORES][metric]) || a - b);
  }
  count.textContent = (shown.length === samples.length ? "" : shown.length + " of ") + samples.length + " samples";
  list.replaceChildren();
  made = 0;
  more();
}
order.append(new Option("as in the data", ""));
metrics.forEach(([name, higher], m) => {
  order.append(new Option(name + ", worst first", m + (higher ? " 1" : " -1")));
  order.append(new Option(name + ", best first", m + (higher ? " -1" : " 1")));
});
search.addEventListener("input", fill);
order.addEventListener("change", fill);
addEventListener("scroll", more, { passive: true });
addEventListener("resize", more);
fill();
</script>
</body>
</html>
)page";

std::string html(std::string_view text) {
  std::string out;
  for (char c : unicode::repair_utf8(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

// Returns a relative link to a path. Every byte that is not a plain path character becomes %XX, so that no file name
// can end the link or change its target.
std::string link_to(const std::string& path, const std::string& folder) {
  if (path.empty()) return "";
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string relative = fs::relative(path, folder, error).generic_string();
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
  std::string out = "./";
  for (char c : relative) {
    constexpr char digits[] = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    if (plain.find(c) != std::string_view::npos) out += c;
    else out += {'%', digits[byte >> 4], digits[byte & 15]};
  }
  return out;
}

// Returns JSON for use inside a script element: no text can close the element, and the line separators that JavaScript
// knows but JSON does not are escaped.
std::string script_json(const Json& value) {
  std::string out;
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '<') out += "\\u003c";
    else if (text.compare(at, 3, "\u2028") == 0) out += "\\u2028", at += 2;
    else if (text.compare(at, 3, "\u2029") == 0) out += "\\u2029", at += 2;
    else out += text[at];
  }
  return out;
}

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

std::string summary(const std::vector<Score>& scores) {
  std::string out;
  for (const auto& score : scores) {
    const Metric& metric = find_metric(score.metric, "");
    out += "<tr><th scope=\"row\">" + html(score.metric) + "</th><td class=\"number\">" + shown(score.value) + "</td>" +
           "<td class=\"number\">" + (score.standard_error ? "± " + shown(*score.standard_error) : "") + "</td><td>" +
           (metric.higher_is_better ? "higher is better" : "lower is better") + "</td><td>" + html(metric.about) +
           "</td></tr>\n";
  }
  return out;
}

Json samples(const PageSettings& settings, const std::vector<Score>& scores, const std::vector<ScoredText>& texts,
             const std::map<std::string, int64_t>& thumbnails) {
  Json out = Json::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& text = texts[i];
    Json values = Json::array();
    for (const auto& score : scores)
      if (score.by_sample.size() == texts.size()) values.push_back(score.by_sample[i]);
    const auto thumbnail = thumbnails.find(text.picture);
    out.push_back({text.id, link_to(text.picture, settings.folder), text.prompt, text.candidate, text.references, values,
                   thumbnail == thumbnails.end() ? -1 : thumbnail->second});
  }
  return out;
}

/// Returns `page` with each mark replaced by its text. The marks must occur in this order; a mark inside an inserted
/// text is not replaced.
std::string filled(std::string_view page, const std::vector<std::pair<std::string_view, std::string>>& texts) {
  std::string out;
  for (const auto& [mark, text] : texts) {
    const size_t at = page.find(mark);
    BLIPFT_CHECK(at != std::string_view::npos, "the page has no ", mark);
    out.append(page.substr(0, at)).append(text);
    page.remove_prefix(at + mark.size());
  }
  return out.append(page);
}

}  // namespace

std::string evaluation_page(const PageSettings& settings, const std::vector<Score>& scores,
                            const std::vector<ScoredText>& texts) {
  Json names = Json::array(), pictures = Json::array();
  std::map<std::string, int64_t> thumbnails;
  for (const ScoredText& text : texts) {
    const auto found = settings.thumbnails.find(text.picture);
    if (found != settings.thumbnails.end() && thumbnails.emplace(text.picture, static_cast<int64_t>(pictures.size())).second)
      pictures.push_back(found->second);
  }
  for (const auto& score : scores)
    if (!texts.empty() && score.by_sample.size() == texts.size())
      names.push_back({score.metric, find_metric(score.metric, "").higher_is_better});
  return filled(page_template, {{"@TITLE@", html(settings.title)},
                                {"@HEADING@", html(settings.title)},
                                {"@SUMMARY@", summary(scores)},
                                {"@METRICS@", script_json(names)},
                                {"@THUMBNAILS@", script_json(pictures)},
                                {"@SAMPLES@", script_json(samples(settings, scores, texts, thumbnails))}});
}

}  // namespace blipft
