// Access to quantized weights: decoding, use as they are stored, and scales of whole matrices; see store.h.
#include <algorithm>

#include "blipft/store.h"

namespace blipft {

namespace {

using Section = ParameterStore::Section;

// Returns the code book of a section whose quantized values are multiplied directly, or nullopt.
std::optional<CodeBook> multiplied_book(const Section& section) {
  for (const CodeBook book : {CodeBook::nf4, CodeBook::int8}) {
    if (section.format != &quantized_format(book)) continue;
    const bool whole = std::all_of(section.pieces.begin(), section.pieces.end(), [&](const auto& piece) {
      return piece.parameter->shape.size() == 2 && piece.parameter->shape[1] % code_block(book) == 0;
    });
    if (whole) return book;
  }
  return std::nullopt;
}

// Returns true if callers that pass `left` to acquire_quantized() read this parameter as it is stored.
bool is_left(const Section& section, const Section::Piece& piece, AcceptedEncodings left) {
  if (left == AcceptedEncodings::blocks) return multiplied_book(section).has_value();
  const std::vector<int64_t>& shape = piece.parameter->shape;
  return left == AcceptedEncodings::fp8 && section.format->scaled() && shape.size() == 2 && shape[1] % kFp8Alignment == 0;
}

// Returns the parameter that begins with element `first` of the flat buffer, if the section has it and is_left().
const Section::Piece* left_at(const Section& section, int64_t first, AcceptedEncodings left) {
  const auto found = std::find_if(section.pieces.begin(), section.pieces.end(),
                                  [&](const auto& piece) { return piece.flat == first; });
  return found != section.pieces.end() && is_left(section, *found, left) ? &*found : nullptr;
}

// Returns `count` elements from `begin` on, which may cover several consecutive parameters.
Stored part_from(const Unit& unit, const Section& section, const Section::Piece& begin, const Stored& gathered, int64_t count) {
  int64_t found = 0;
  for (const Section::Piece* piece = &begin; piece != section.pieces.data() + section.pieces.size() && found < count; ++piece) {
    BLIPFT_CHECK(piece->flat - begin.flat == found && piece->at - begin.at == found, "unit ", unit.name(), ": the codes of ",
                 begin.parameter->name, " and ", piece->parameter->name, " do not lie one behind the other");
    found += piece->parameter->numel();
  }
  BLIPFT_CHECK(found == count, "unit ", unit.name(), ": ", count, " quantized elements were requested from ",
               begin.parameter->name, " on, but its parameters end after ", found);
  return gathered.part(begin.at, count);
}

// Index of the largest magnitude in the words of a matrix. Word 0 is the scale, at a multiple of 16 bytes.
constexpr int64_t kLargestWord = 1;
Tensor scale_of(const Section& section, int64_t matrix) {
  return section.scales.part(matrix * ParameterStore::kScaleWords, {1});
}

}  // namespace

Stored ParameterStore::with_scale(const Section& section, const Section::Piece& piece, Stored part) {
  if (section.scales) part.planes.push_back(scale_of(section, piece.matrix));
  return part;
}

std::optional<Quantized> ParameterStore::quantized(const Unit& unit, const std::vector<Stored>& gathered, int64_t first,
                                               int64_t count) const {
  const std::vector<Section>& sections = of(unit).sections;
  for (size_t s = 0; s < sections.size(); ++s)
    if (const Section::Piece* piece = left_at(sections[s], first, AcceptedEncodings::blocks)) {
      const Stored part = part_from(unit, sections[s], *piece, gathered.at(s), count);
      return Quantized{*multiplied_book(sections[s]), part.planes.at(0), part.planes.at(1), {}};
    }
  return std::nullopt;
}

bool ParameterStore::read_as_stored(const Section& section, AcceptedEncodings accepted) const {
  return accepted == AcceptedEncodings::blocks && section.format == &plain_format(context_.types.compute);
}

std::vector<UnitWeights::Range> ParameterStore::as_stored(const Unit& unit, const std::vector<Stored>& gathered,
                                                          AcceptedEncodings accepted) const {
  std::vector<UnitWeights::Range> ranges;
  if (flat(unit)) return ranges;
  const std::vector<Section>& sections = of(unit).sections;
  for (size_t s = 0; s < sections.size(); ++s)
    if (read_as_stored(sections[s], accepted))
      for (const Section::Piece& piece : sections[s].pieces) {
        const int64_t count = piece.parameter->numel();
        UnitWeights::Range* const last = ranges.empty() ? nullptr : &ranges.back();
        // Packed layers read several parameters as one tensor.
        const Tensor stored = gathered.at(s).tensor().part(piece.at, {count});
        const bool follows = last && piece.flat == last->first + last->stored.numel() &&
                             stored.data == last->stored.as<char>() + last->stored.bytes();
        if (follows) last->stored.shape = {last->stored.numel() + count};
        else ranges.push_back({piece.flat, stored});
      }
  return ranges;
}

Fp8Matrix ParameterStore::fp8_values(const Unit& unit, const std::vector<Stored>& gathered, int64_t first, int64_t count) const {
  const std::vector<Section>& sections = of(unit).sections;
  for (size_t s = 0; s < sections.size(); ++s)
    if (const Section::Piece* piece = left_at(sections[s], first, AcceptedEncodings::fp8))
      return {part_from(unit, sections[s], *piece, gathered.at(s), count).planes.at(0), scale_of(sections[s], piece->matrix)};
  return {};
}

bool ParameterStore::in_fp8(const Unit& unit, int64_t first) const {
  const std::vector<Section>& sections = of(unit).sections;
  return std::any_of(sections.begin(), sections.end(),
                     [&](const Section& section) { return left_at(section, first, AcceptedEncodings::fp8) != nullptr; });
}

void ParameterStore::decode(const Unit& unit, const std::vector<Stored>& gathered, const Tensor& flat, Stream stream,
                            AcceptedEncodings left) const {
  const std::vector<Section>& sections = of(unit).sections;
  for (size_t s = 0; s < sections.size(); ++s) {
    if (read_as_stored(sections[s], left)) continue;
    const std::vector<Section::Piece>& pieces = sections[s].pieces;
    const int64_t block = sections[s].format->block();
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Section::Piece& first = pieces[i];
      if (is_left(sections[s], first, left)) continue;
      int64_t count = first.parameter->numel();
      // Parameters that are consecutive both in the section and in the flat buffer are decoded together.
      const auto follows = [&](const Section::Piece& next) {
        return next.at - first.at == count && next.flat - first.flat == count && next.matrix == first.matrix &&
               !is_left(sections[s], next, left);
      };
      for (; i + 1 < pieces.size() && follows(pieces[i + 1]); ++i) count += pieces[i + 1].parameter->numel();
      with_scale(sections[s], first, gathered.at(s).part(first.at, (count + block - 1) / block * block))
          .decode(*context_.ops, flat.part(first.flat, {count}), stream);
    }
  }
}

bool ParameterStore::decodes(const Unit& unit, AcceptedEncodings left) const {
  if (flat(unit)) return false;
  const std::vector<Section>& sections = of(unit).sections;
  return std::any_of(sections.begin(), sections.end(), [&](const Section& section) {
    return !section.format->plain() && std::any_of(section.pieces.begin(), section.pieces.end(),
                                                   [&](const auto& piece) { return !is_left(section, piece, left); });
  });
}

bool ParameterStore::scaled(const Unit& unit, const Parameter& parameter) const {
  const std::vector<Section>& sections = of(unit).sections;
  return std::any_of(sections.begin(), sections.end(), [&](const Section& section) {
    return section.format->scaled() && std::any_of(section.pieces.begin(), section.pieces.end(),
                                                   [&](const auto& piece) { return piece.parameter == &parameter; });
  });
}

void ParameterStore::reset_scale(const Unit& unit, const Parameter& parameter, Stream stream) {
  for_scale(unit, parameter, [&](const Tensor& words) {
    context_.device->zero(words.data, words.bytes(), stream);
  });
}

void ParameterStore::measure(const Unit& unit, const Parameter& parameter, const Tensor& values, Stream stream) {
  for_scale(unit, parameter, [&](const Tensor& words) {
    context_.ops->raise_fp8_scale(values, words.part(kLargestWord, {1}), words.part(0, {1}), stream);
  });
}

void ParameterStore::for_scale(const Unit& unit, const Parameter& parameter, const std::function<void(const Tensor&)>& body) const {
  for (const Section& section : of(unit).sections)
    for (const Section::Piece& piece : section.pieces)
      if (piece.parameter == &parameter && section.format->scaled())
        body(section.scales.part(piece.matrix * kScaleWords, {kScaleWords}));
}

}  // namespace blipft
