// Datasets: random access to the samples of every file format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "blipft/choices.h"
#include "blipft/text.h"

namespace blipft {

/// Random access to encoded samples. Thread-safe.
class Dataset {
 public:
  using Segment = TextSegment;
  struct Answer {
    std::string text;
    double weight = 1;                      ///< > 0, in proportion to the others'
  };
  struct Sample {
    std::string name;                       ///< for messages: the picture's file, or tar member, or file and line
    std::vector<Segment> segments;          ///< its text: each is tokenized apart, then they are joined
    std::optional<std::vector<uint8_t>> picture;  ///< encoded JPEG, PNG or WebP
    bool whole = false;                     ///< the segments are one text, tokenized in one go: what it begins and ends
                                            ///< with stands in it
    std::optional<bool> ends = {};          ///< whether the end token stands behind the joined segments, once; nullopt:
                                            ///< what the tokenizer's files put behind every text
    std::vector<Answer> answers = {};       ///< more than one: the last segment is one of these, drawn in each pass
    int64_t number = 0;                     ///< with answers: draws depend on it
  };
  /// What generation takes of a sample: the text up to what is to be generated.
  struct Prompt {
    std::string name;                       ///< as of the sample
    std::string id;                         ///< question_id or image_id of the record, as JSON; empty: it has none
    std::string picture;                    ///< the same for samples of one picture; empty: it has none
    std::string text;                       ///< empty: nothing but what the tokenizer puts before every text
    bool whole = false;                     ///< what it begins with stands in it: a conversation
    std::vector<std::string> references;    ///< texts that would be right
    bool operator==(const Prompt&) const = default;
  };
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sample read(int64_t index) const = 0;
  /// Reads no picture. This default is right where the text is no conversation and has no prompt.
  virtual Prompt read_prompt(int64_t index) const;
  /// The number of a sample in the order of the files, from 0; another one than its index where samples were left out.
  virtual int64_t number_of(int64_t index) const { return index; }
  virtual bool has_pictures() const { return true; }  ///< false: no sample has one
  /// Samples of one group stay together when a part of the samples is held out.
  struct SplitGroup {
    std::string name;                       ///< empty: the sample is a group by itself
    bool is_prompt = false;                 ///< the group's samples share a prompt, not a picture
  };
  /// The group of a sample: that of its picture, else that of its prompt. A sample that cannot be read has no group.
  virtual SplitGroup split_group(int64_t index) const;
  /// Throws UserError with the number and the first of the pictures that have an unsupported format, such as GIF. Looks at
  /// all names, and at the first bytes of some pictures.
  virtual void check_picture_formats() const {}
  /// Of a folder that has pictures alone: how many files in it are no pictures, by their names.
  virtual std::optional<int64_t> files_beside_pictures() const { return std::nullopt; }
  /// Tells what this dataset is made of, in order, as far as that is known without reading samples: names of files and
  /// members (without the folder that all lie in), texts, sizes in bytes. Equal datasets tell the same. Takes some 0.1 us
  /// a sample, and looks at a few dozen files at most.
  using Take = std::function<void(std::string_view text, int64_t bytes)>;
  virtual void identify(const Take& take) const { take("", size()); }
  /// Tells what identify() does not: texts whole, of pictures sizes and contents of some that are evenly spread. What cannot
  /// be read is told as such. Reads files: up to seconds for a million samples. Thread-safe.
  virtual void identify_contents(const Take& take) const { (void)take; }
};
/// Opens a dataset by `format`: imagefolder, webdataset, json, csv, or "auto", which looks. Throws UserError naming file and
/// line. JSON files are indexed when they are opened, and each record is parsed, and checked, when it is read.
/// Captions are taken as they are, white space at their ends too. A surrogate escape in JSON that is no half of a pair
/// becomes U+FFFD, as other ill-formed text does in the tokenizer. Captions that are all known to be empty are refused.
std::unique_ptr<Dataset> open_dataset(const std::string& path, DatasetFormat format,
                                      const TextSettings& settings = {});
/// Whether something is at `path`, or matches it where it is a pattern of .tar files.
bool dataset_exists(const std::string& path);
/// The largest number of tokens that texts at `path` usually have: 512 if these are records, else `otherwise`.
int64_t usual_text_tokens(const std::string& path, DatasetFormat format, const TextSettings& settings, int64_t otherwise);

}  // namespace blipft
