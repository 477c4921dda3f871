// --show: the text of samples and the table of lengths; see show_samples.h.
#include "show/show_samples.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/process_info.h"
#include "base/standard_output.h"
#include "blipft/error.h"
#include "liveness/launcher.h"
#include "loading/in_threads.h"
#include "loading/picture_reader.h"
#include "loading/text_shapes.h"
#include "show/sample_viewer.h"

namespace blipft {

namespace {

constexpr int64_t kMaxTexts = 20'000, kMaxPictures = 1'000;  // samples in the table of lengths
constexpr size_t kMaxCutShown = 40;         // tokens shown of what is cut

/// Marks at the begin and end of trained and of cut text.
struct Marks {
  const char *trained, *trained_end, *cut, *cut_end;
};
constexpr Marks kColors = {"\x1b[1;32m", "\x1b[0m", "\x1b[2;31m", "\x1b[0m"}, kBrackets = {"[[", "]]", "<<cut: ", ">>"};

/// A text in lines that begin with a bar. Control characters are escaped.
class TextBlock {
 public:
  explicit TextBlock(bool color) : color_(color), marks_(color ? kColors : kBrackets) {}
  enum class Part { plain, trained, cut };
  void part(Part part) {
    if (part == part_) return;
    out_ += end_of(part_), out_ += begin_of(part);
    part_ = part;
  }
  /// `text` may end inside of a line, but not inside of a character.
  void add(const std::string& text) {
    for (const char c : printable(text, true)) {
      if (c != '\n') {
        out_ += c;
        continue;
      }
      // A pager resets colours at line ends.
      out_ += color_ ? concat(end_of(part_), "\n    | ", begin_of(part_)) : "\n    | ";
    }
  }
  std::string finish() {
    part(Part::plain);
    return out_ + "\n";
  }

 private:
  const char* begin_of(Part part) const {
    return part == Part::trained ? marks_.trained : part == Part::cut ? marks_.cut : "";
  }
  const char* end_of(Part part) const {
    return part == Part::trained ? marks_.trained_end : part == Part::cut ? marks_.cut_end : "";
  }
  bool color_;
  Marks marks_;
  std::string out_ = "    | ";
  Part part_ = Part::plain;
};

/// The text of the ids that are kept, and at its place the text that is cut: `whole` has all ids. Consecutive ids
/// `picture_id` are shown as one with their number.
std::string text_block(const std::vector<int32_t>& kept, const std::vector<uint8_t>& trained, const std::vector<int32_t>& whole,
                       const Tokenizer& tokenizer, bool color, int32_t picture_id) {
  using Part = TextBlock::Part;
  TextBlock block(color);
  const std::unique_ptr<TextStream> stream = tokenizer.text_stream({.skip_special_tokens = false});
  std::string text;
  Part part = Part::plain;
  int64_t picture_rows = 0;
  const auto put = [&](int32_t id, Part next) {
    if (id == picture_id && picture_rows++ > 0) return;
    if (id != picture_id && picture_rows > 0) text += concat(" x ", std::exchange(picture_rows, 0));
    if (next != part) block.part(part), block.add(std::exchange(text, "")), part = next;
    text += stream->push(id);
  };
  // The last of the kept ids may be special tokens that stand behind every text.
  const size_t cut = static_cast<size_t>(std::mismatch(kept.begin(), kept.end(), whole.begin(), whole.end()).first - kept.begin());
  const size_t cut_end = whole.size() - (kept.size() - cut), shown = std::min(cut_end, cut + kMaxCutShown);
  const auto put_cut = [&] {
    for (size_t i = cut; i < shown; ++i) put(whole[i], Part::cut);
    if (shown < cut_end) text += concat(" ... ", cut_end - shown, " more tokens");
  };
  for (size_t i = 0; i < kept.size(); ++i) {
    if (i == cut) put_cut();
    put(kept[i], i > 0 && !trained.empty() && trained[i] ? Part::trained : Part::plain);
  }
  if (cut == kept.size()) put_cut();
  text += stream->finish();
  block.part(part);
  block.add(text);
  return block.finish();
}

/// Ids in lines; a star is behind those that are trained.
std::string id_lines(const std::vector<int32_t>& ids, const std::vector<uint8_t>& trained, int32_t picture_id) {
  std::string text, line = "    ids";
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string id = concat(" ", ids[i], i > 0 && !trained.empty() && trained[i] ? "*" : "");
    size_t end = i;
    while (ids[i] == picture_id && end < ids.size() && ids[end] == picture_id) ++end;
    if (end > i + 1) id += concat(" x ", end - i), i = end - 1;
    if (line.size() + id.size() > 110) text += line + "\n", line = "       ";
    line += id;
  }
  return text + line + "\n";
}

int64_t count_trained(const TokenizedText& text) {
  return text.ids.empty() ? 0 : std::count(text.is_label.begin() + 1, text.is_label.end(), 1);
}

std::string length_text(size_t kept, size_t whole) {
  if (kept == whole) return counted(static_cast<int64_t>(kept), "token");
  return concat(kept, " of ", whole, " tokens (cut: data.max_text_tokens)");
}

/// One row of the table of lengths.
std::string table_row(const char* name, std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  char text[32];
  std::snprintf(text, sizeof text, "%-12s", name);
  std::string row = text;
  for (const int64_t percent : {0, 5, 25, 50, 75, 95, 99, 100}) {
    const auto last = static_cast<int64_t>(values.size()) - 1;
    std::snprintf(text, sizeof text, "%8lld", static_cast<long long>(values[static_cast<size_t>((last * percent + 50) / 100)]));
    row += text;
  }
  const auto sum = static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0}));
  std::snprintf(text, sizeof text, "%10.1f\n", sum / static_cast<double>(values.size()));
  return row + text;
}

std::string share_text(int64_t count, int64_t all) {
  char text[64];
  std::snprintf(text, sizeof text, "%lld of %lld (%.1f %%)", static_cast<long long>(count), static_cast<long long>(all),
                100.0 * static_cast<double>(count) / static_cast<double>(all));
  return text;
}

/// Lengths of one sample, or why it cannot be read.
struct Lengths {
  int64_t text = 0, trained = 0, source = 0, instruction = 0, picture_rows = 0;
  bool cut = false;
  std::string name, bad;                    // bad: why the sample cannot be read
};

/// Describes the pictures in a text.
std::string pictures_text(const SampleViewer& viewer, const ShownSample& shown) {
  const PictureReader& reader = *viewer.data().training.pictures;
  const int64_t cell = reader.patches.side * reader.patches.merge;
  std::string text;
  for (size_t i = 0; i < shown.whole.pictures.size(); ++i) {
    const PictureFile& file = shown.sample.pictures[i];
    const PictureSegment& read = shown.whole.pictures[i];
    const PictureSize size = picture_size(open_picture(file), file.name, reader.decode);
    text += concat("  picture  ", printable(file.file, true), ": ", size.width, " x ", size.height, " pixels; read as ",
                   read.width * cell, " x ", read.height * cell, ", ", counted(read.cells(), "row"),
                   i < shown.text.pictures.size() ? "\n" : " (cut: data.max_text_tokens)\n");
  }
  return text;
}

std::string picture_text(const SampleViewer& viewer, const ShownSample& shown) {
  if (viewer.inputs().text.pictures) return pictures_text(viewer, shown);
  const Dataset::Sample& sample = shown.sample;
  const int64_t side = viewer.inputs().picture_size;
  if (side == 0) return sample.picture ? "  picture  not read by this model\n" : "";
  const Image picture = viewer.picture(sample);
  return concat("  picture  ", picture.width, " x ", picture.height, " pixels, ", sample.picture->size(), " bytes; read as ",
                side, " x ", side, "\n");
}

/// The candidates of a sample with several answers.
std::string answers_text(const Dataset::Sample& sample) {
  if (sample.answers.size() < 2) return "";
  std::string text;
  for (const Dataset::Answer& answer : sample.answers)
    text += concat(text.empty() ? "  answers  \"" : ", \"", printable(brief(answer.text), true), "\" (", answer.weight, ")");
  return text + "; one is drawn in each epoch\n";
}

/// Describes a sample in lines of text. Marks trained tokens by colour if `color` is set, else by brackets.
std::string sample_text(const SampleViewer& viewer, int64_t index, bool color) {
  std::string out = concat("sample ", index + 1, " of ", viewer.size(), ": ");
  try {
    const ShownSample shown = viewer.read(index);
    out += printable(shown.sample.name, true) + "\n" + picture_text(viewer, shown) + answers_text(shown.sample);
    const RunData& data = viewer.data();
    const bool has_source = viewer.inputs().has_source();
    const auto text_of = [&](const std::vector<int32_t>& kept, const std::vector<uint8_t>& trained, const std::vector<int32_t>& whole,
                             const Tokenizer& tokenizer) {
      try {
        return text_block(kept, trained, whole, tokenizer, color, viewer.inputs().text.picture_id);
      } catch (const UserError& error) {     // a run needs no decoder
        return concat("    no text: ", error.what(), "\n");
      }
    };
    const auto part = [&](const char* name, const std::vector<int32_t>& kept, const std::vector<int32_t>& whole,
                          const TokenizedText* trained, const Tokenizer& tokenizer) {
      static const std::vector<uint8_t> none;
      out += concat("  ", name, "  ", length_text(kept.size(), whole.size()),
                    trained ? concat(", ", count_trained(*trained), " trained") : "", "\n",
                    text_of(kept, trained ? trained->is_label : none, whole, tokenizer),
                    id_lines(kept, trained ? trained->is_label : none, viewer.inputs().text.picture_id));
    };
    if (!shown.text.instruction.empty())
      part("instruction", shown.text.instruction, shown.whole.instruction, nullptr, *data.instructions.tokenizer);
    if (has_source) part("source", shown.text.source, shown.whole.source, nullptr, *data.tokenizer);
    part(has_source ? "target" : "text", shown.text.ids, shown.whole.ids, &shown.text, *data.tokenizer);
    if (!shown.text.has_target()) out += "  nothing of it is trained\n";
  } catch (const UserError& error) {
    out += concat("cannot be read\n  ", printable(error.what(), true), "\n");
  }
  return out;
}

/// Prints the lengths of evenly spread samples, at most some thousand. Throws the error of the first sample that would end
/// a run.
void print_lengths(const SampleViewer& viewer) {
  const RunData& data = viewer.data();
  const bool has_source = viewer.inputs().has_source();
  const int64_t size = viewer.size();
  const int64_t count = std::min(size, data.training.dataset->has_pictures() ? kMaxPictures : kMaxTexts);
  std::vector<Lengths> all(static_cast<size_t>(count));
  for_each_in_threads(count, machine_cores(), [&](int64_t i) {
    Lengths& one = all[static_cast<size_t>(i)];
    try {
      const ShownSample shown = viewer.read(i * size / count);
      one = {shown.whole.size(), count_trained(shown.text), shown.whole.source_size(),
             static_cast<int64_t>(shown.whole.instruction.size()), pictures_of(shown.whole.pictures, {}).rows, shown.text.cut,
             shown.sample.name, {}};
    } catch (const UserError& error) {
      one.bad = error.what();
    }
  });
  std::vector<Lengths> good;
  std::copy_if(all.begin(), all.end(), std::back_inserter(good), [](const Lengths& one) { return one.bad.empty(); });
  std::string out = concat("lengths of ", count < size ? concat(count, " of ") : "all ", counted(size, "sample"),
                           count < size ? ", evenly spread" : "", ", in tokens, before they are cut\n");
  if (!good.empty()) {
    out += concat(std::string(12, ' '), "     min     5 %    25 %    50 %    75 %    95 %    99 %     max      mean\n");
    const auto row = [&](const char* name, int64_t Lengths::*length) {
      std::vector<int64_t> values;
      for (const Lengths& one : good) values.push_back(one.*length);
      out += table_row(name, values);
    };
    if (data.instructions.tokenizer) row("instruction", &Lengths::instruction);
    if (has_source) row("source", &Lengths::source);
    row(has_source ? "target" : "text", &Lengths::text);
    if (viewer.inputs().text.pictures) row("pictures", &Lengths::picture_rows);
    row("trained", &Lengths::trained);
  }
  const auto line = [&](const char* name, const auto& counts, const char* what) {
    const auto first = std::find_if(all.begin(), all.end(), counts);
    if (first == all.end()) return;
    out += concat(name, share_text(std::count_if(all.begin(), all.end(), counts), count), what,
                  first->bad.empty() ? printable(first->name, true) : printable(first->bad, true), "\n");
  };
  line("cut         ", [](const Lengths& one) { return one.cut; },
       concat(" to data.max_text_tokens ", viewer.config().data.max_text_tokens, "; the first: ").c_str());
  line("untrained   ", [](const Lengths& one) { return one.bad.empty() && one.trained == 0; },
       " have nothing to train; the first: ");
  line("unreadable  ", [](const Lengths& one) { return !one.bad.empty(); }, " cannot be read; the first: ");
  if (const std::string keys = data.training.dataset->unread_keys(); !keys.empty())
    out += concat("note: keys of the records that are not read: ", printable(keys, true), "\n");
  if (const std::string warning = end_token_warning(viewer.config(), viewer.inputs(), data); !warning.empty())
    out += concat("warning: ", printable(warning, true), "\n");
  std::fputs(out.c_str(), stdout);
  const auto bad = std::find_if(all.begin(), all.end(), [](const Lengths& one) { return !one.bad.empty(); });
  BLIPFT_USER_CHECK(bad == all.end() || viewer.config().data.on_bad_sample == FaultAction::skip, bad->bad,
                    "; data.on_bad_sample=skip leaves such samples out");
}

}  // namespace

void show_samples(const Config& config, int64_t samples, bool random) {
  const SampleViewer viewer(config);
  const bool color = stdout_is_terminal();
  std::printf("%s\n\n", color ? "trained tokens are green, cut ones are red; ids: a star behind trained ones"
                              : "[[trained text]], <<cut: text>>; ids: a star behind trained ones");
  for (const int64_t index : viewer.choose(samples, random)) std::printf("%s\n", sample_text(viewer, index, color).c_str());
  print_lengths(viewer);
}

}  // namespace blipft
