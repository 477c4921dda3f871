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

/// data.format
enum class DatasetFormat { automatic, imagefolder, webdataset, json, csv };
BLIPFT_CHOICE_WORDS(DatasetFormat, "auto", "imagefolder", "webdataset", "json", "csv");

/// An encoded picture, which is a file or a part of one.
struct PictureFile {
  std::string name;                         ///< for messages
  std::string file;
  int64_t offset = 0, bytes = -1;           ///< -1: up to the end of the file
  bool operator==(const PictureFile&) const = default;
};

/// Random access to encoded samples. Thread-safe.
class Dataset {
 public:
  using Segment = TextSegment;
  struct Answer {
    std::string text;
    double weight = 1;                      ///< > 0, relative to the weights of the other answers
    std::vector<Segment> segments = {};     ///< of a conversation: the sample's whole text with this answer
  };
  struct Sample {
    std::string name;                       ///< for messages: the picture's file or tar member, or file and line
    std::vector<Segment> segments;          ///< the sample's text; segments are tokenized one by one, then concatenated
    std::optional<std::vector<uint8_t>> picture;  ///< encoded JPEG, PNG or WebP
    bool whole = false;                     ///< true if the segments are tokenized as one text, which contains its own
                                            ///< begin and end tokens
    std::optional<bool> ends = {};          ///< true if one end token follows the last segment, false if none does;
                                            ///< nullopt: the tokenizer's files decide
    std::vector<Answer> answers = {};       ///< if there are several, each epoch draws one as the last segment
    int64_t number = 0;                     ///< numbers the random draws of answers
    std::vector<PictureFile> pictures = {};  ///< with TextSettings::pictures_in_texts: in the order of their placeholders,
                                             ///< and `picture` is absent
  };
  /// The part of a sample that generation reads: its text up to the answer.
  struct Prompt {
    std::string name;                       ///< name of the sample
    std::string id;                         ///< question_id or image_id of the record as JSON, empty if there is none
    std::string picture;                    ///< key of the picture, equal for all samples of one picture; empty if none
    std::string text;                       ///< if empty, the prompt has only the tokens that begin every text
    bool whole = false;                     ///< true if the text contains its own begin token (a conversation)
    std::vector<std::string> references;    ///< correct answers
    std::vector<PictureFile> pictures = {};  ///< as in Sample
    bool operator==(const Prompt&) const = default;
  };
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual Sample read(int64_t index) const = 0;
  /// Returns the prompt of a sample without reading its picture. This default suits texts without a prompt.
  virtual Prompt read_prompt(int64_t index) const;
  /// Returns the number of a sample in the order of the files, from 0. It differs from the index if samples were left
  /// out.
  virtual int64_t number_of(int64_t index) const { return index; }
  virtual bool has_pictures() const { return true; }  ///< false if no sample has a picture
  /// A split into training and validation samples never separates the samples of one group.
  struct SplitGroup {
    std::string name;                       ///< if empty, the sample is a group of its own
    bool is_prompt = false;                 ///< true if the samples of the group share a prompt, false for a picture
  };
  /// Returns the group of a sample's picture or, without pictures, of its prompt. An unreadable sample has no group.
  virtual SplitGroup split_group(int64_t index) const;
  /// Returns the keys of the records read so far that nothing reads, with the number of records that have them:
  /// "category (300), id (300)".
  virtual std::string unread_keys() const { return {}; }
  /// Throws UserError with the count and the first name of pictures in an unsupported format, such as GIF. Checks all
  /// names, and the first bytes of some pictures.
  virtual void check_picture_formats() const {}
  /// For a folder of pictures without texts: returns the number of other files, by their names; nullopt for other
  /// formats.
  virtual std::optional<int64_t> other_files() const { return std::nullopt; }
  /// Passes to `take`, in order, everything that identifies the dataset without reading samples: names of files and
  /// members relative to their folder, texts, and sizes in bytes. Equal datasets pass equal values. Costs about 0.1
  /// us per sample, and examines a few dozen files at most.
  using Take = std::function<void(std::string_view text, int64_t bytes)>;
  virtual void identify(const Take& take) const { take("", size()); }
  /// Passes to `take` what identify() leaves out: whole texts, the sizes of pictures, and the contents of an evenly
  /// spread selection of pictures. An unreadable file is passed as unreadable. Reads files, which takes up to a few
  /// seconds for a million samples. Thread-safe.
  virtual void identify_contents(const Take& take) const { (void)take; }
};
/// Opens a dataset of `format`; "auto" detects the format. Throws UserError with file and line. Opening a JSON file
/// builds an index of its records; reading a record parses and checks it. Captions keep the white space at their
/// ends. An unpaired surrogate escape in JSON becomes U+FFFD, as the tokenizer does with other ill-formed text. A
/// dataset is refused if all of its captions are known to be empty.
std::unique_ptr<Dataset> open_dataset(const std::string& path, DatasetFormat format,
                                      const TextSettings& settings = {});
/// Returns true if `path` exists or, as a pattern of .tar files, matches a file.
bool dataset_exists(const std::string& path);
/// The largest number of tokens that texts at `path` usually have: 512 if these are records or, with
/// settings.pictures_in_texts, conversations about pictures; else `otherwise`.
int64_t usual_text_tokens(const std::string& path, DatasetFormat format, const TextSettings& settings, int64_t otherwise);

}  // namespace blipft
