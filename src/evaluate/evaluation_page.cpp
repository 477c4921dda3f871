// The page that shows pictures, what was said of them, the references and the scores.
#include <nlohmann/json.hpp>

#include <filesystem>

#include "blipft/error.h"
#include "blipft/evaluate.h"
#include "data/unicode.h"
#include "evaluate/page_template.h"

namespace blipft {
namespace {

using Json = nlohmann::ordered_json;

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

// A path as a link: what is no plain character of a path becomes %XX, so that no name ends the link or leads elsewhere.
std::string link_to(const std::string& path, const std::string& folder) {
  if (path.empty()) return "";
  namespace fs = std::filesystem;
  const fs::path whole = fs::absolute(path).lexically_normal(), base = fs::absolute(folder).lexically_normal();
  const std::string relative = whole.lexically_relative(base).generic_string();
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

// JSON inside of a script element: no text may end the element, and no line end that JavaScript knows and JSON does not.
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
           (metric.higher_is_better ? "higher is better" : "lower is better") + "</td><td>" + html(metric.about) + "</td></tr>\n";
  }
  return out;
}

Json samples(const PageSettings& settings, const std::vector<Score>& scores, const std::vector<ScoredText>& texts) {
  Json out = Json::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& text = texts[i];
    Json values = Json::array();
    for (const auto& score : scores)
      if (score.by_sample.size() == texts.size()) values.push_back(score.by_sample[i]);
    out.push_back({text.id, link_to(text.picture, settings.folder), text.prompt, text.candidate, text.references, values});
  }
  return out;
}

/// `page` with a text for each mark. The marks stand in this order, and what texts hold is never taken for one.
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
  Json names = Json::array();
  for (const auto& score : scores)
    if (!texts.empty() && score.by_sample.size() == texts.size())
      names.push_back({score.metric, find_metric(score.metric, "").higher_is_better});
  return filled(page_template, {{"@TITLE@", html(settings.title)},
                                {"@HEADING@", html(settings.title)},
                                {"@SUMMARY@", summary(scores)},
                                {"@METRICS@", script_json(names)},
                                {"@SAMPLES@", script_json(samples(settings, scores, texts))}});
}

}  // namespace blipft
