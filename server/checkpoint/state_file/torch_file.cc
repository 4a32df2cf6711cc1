#include "server/checkpoint/state_file/torch_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/checkpoint/state_file/pickle_reader.h"
#include "server/checkpoint/state_file/pickle_writer.h"
#include "server/checkpoint/state_file/zip_reader.h"

namespace optshard {
namespace {

constexpr char kRoot[] = "archive/";
constexpr char kPickle[] = "data.pkl";
constexpr char kByteOrder[] = "byteorder";
constexpr char kVersion[] = "version";
constexpr int kNewestVersion = 10;  // of the archives that PyTorch itself reads
constexpr size_t kMostSmallBytes = 64;
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int64_t kTarMagicAt = 257;

absl::Status OldFile(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("it is ", what,
                   ": load it in Python, and save it again by torch.save of PyTorch 1.6 or newer"));
}

// What is no zip archive from its beginning on.
absl::Status CheckBeginning(File& file) {
  std::array<char, kTarMagicAt + 5> bytes = {};
  const auto got = file.ReadAt(0, absl::MakeSpan(bytes));
  if (!got.ok()) return got.status();
  const absl::string_view begin(bytes.data(), *got);
  if (absl::StartsWith(begin, "PK")) return absl::OkStatus();
  if (absl::StartsWith(begin, "\x80")) {
    return OldFile("a bare pickle, as torch.save of PyTorch before 1.6 wrote, or pickle.dump");
  }
  if (begin.size() == bytes.size() && absl::EndsWith(begin, "ustar")) {
    return OldFile("a tar archive, as torch.save of PyTorch before 0.1.10 wrote");
  }
  return absl::InvalidArgumentError(
      "it is no file of torch.save: it does not begin as a zip archive");
}

class Archive {
 public:
  static absl::StatusOr<Archive> Open(File& file) {
    Archive archive(file);
    auto entries = ReadZipDirectory(file);
    if (!entries.ok()) return entries.status();
    archive.entries_ = *std::move(entries);
    for (const ZipEntry& entry : archive.entries_) {
      const size_t slash = entry.name.find('/');
      if (slash == std::string::npos || entry.name.substr(slash + 1) != kPickle) continue;
      if (!archive.root_.empty()) {
        return absl::InvalidArgumentError("it has two pickles, as no file of torch.save has");
      }
      archive.root_ = entry.name.substr(0, slash + 1);
    }
    if (archive.root_.empty()) {
      return absl::InvalidArgumentError(
          "it is a zip archive, but has no NAME/data.pkl: it is no "
          "file of torch.save");
    }
    return archive;
  }

  // Null where there is none.
  const ZipEntry* Find(absl::string_view name) const {
    const std::string whole = absl::StrCat(root_, name);
    const auto found = std::lower_bound(
        entries_.begin(), entries_.end(), whole,
        [](const ZipEntry& entry, const std::string& n) { return entry.name < n; });
    return found != entries_.end() && found->name == whole ? &*found : nullptr;
  }

  // All of an entry, checked.
  absl::StatusOr<std::string> Read(const ZipEntry& entry, int64_t most_bytes) const {
    if (entry.bytes > most_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("its entry \"", entry.name, "\" has ",
                                                     entry.bytes, " bytes, at most ", most_bytes));
    }
    std::string bytes(static_cast<size_t>(entry.bytes), '\0');
    const auto got = file_->ReadAt(entry.offset_bytes, absl::MakeSpan(bytes));
    if (!got.ok()) return got.status();
    const auto sum = static_cast<uint32_t>(
        crc32_z(crc32(0, nullptr, 0), reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    if (*got < bytes.size() || sum != entry.crc32) {
      return absl::DataLossError(
          absl::StrCat("its entry \"", entry.name, "\" is damaged: its checksum is wrong"));
    }
    return bytes;
  }

 private:
  explicit Archive(File& file) : file_(&file) {}

  File* file_;
  std::string root_;
  std::vector<ZipEntry> entries_;
};

absl::Status CheckKind(const Archive& archive) {
  const ZipEntry* const order = archive.Find(kByteOrder);
  if (order != nullptr) {
    const auto text = archive.Read(*order, kMostSmallBytes);
    if (!text.ok()) return text.status();
    if (*text != "little") {
      return absl::InvalidArgumentError(
          absl::StrCat("its byteorder is \"", absl::CHexEscape(*text),
                       "\", expected little: load it in Python, and save it again on a "
                       "little-endian machine"));
    }
  }
  const ZipEntry* const version = archive.Find(kVersion);
  if (version == nullptr) return absl::OkStatus();
  const auto text = archive.Read(*version, kMostSmallBytes);
  if (!text.ok()) return text.status();
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < 1 || number > kNewestVersion) {
    return absl::InvalidArgumentError(absl::StrCat("its archive is of version \"",
                                                   absl::CHexEscape(*text), "\", expected 1 to ",
                                                   kNewestVersion));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileDocument> ReadArchive(File& file) {
  absl::Status begins = CheckBeginning(file);
  if (!begins.ok()) return begins;
  const auto archive = Archive::Open(file);
  if (!archive.ok()) return archive.status();
  absl::Status kind = CheckKind(*archive);
  if (!kind.ok()) return kind;
  const auto pickle = archive->Read(*archive->Find(kPickle), kMaxPickleBytes);
  if (!pickle.ok()) return pickle.status();
  auto document = ReadPickle(*pickle);
  if (!document.ok()) return document.status();
  for (FileStorage& storage : document->storages) {
    const std::string key = absl::StrCat("data/", storage.name);
    const ZipEntry* const entry = archive->Find(key);
    if (entry == nullptr || entry->bytes < storage.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("its pickle has a storage \"", absl::CHexEscape(storage.name), "\" of ",
                       storage.bytes, " bytes, and the entry \"", absl::CHexEscape(key), "\" ",
                       entry == nullptr ? "is not there" : absl::StrCat("has ", entry->bytes)));
    }
    storage = {entry->name, entry->offset_bytes, entry->bytes, entry->crc32};
  }
  return document;
}

}  // namespace

absl::StatusOr<FileDocument> ReadTorchFile(File& file) {
  auto document = ReadArchive(file);
  if (!document.ok()) return errors::WithContext(document.status(), file.path());
  return document;
}

absl::Status WriteTorchFile(const FileDocument& document, const TensorBytes& source, File& file,
                            const FileProgress& progress, const ZipWriterOptions& options) {
  const auto pickle = PickleOf(document);
  if (!pickle.ok()) return errors::WithContext(pickle.status(), file.path());
  ZipWriter zip(file, options);
  absl::Status written = zip.Write(absl::StrCat(kRoot, kPickle), *pickle);
  if (written.ok()) written = zip.Write(absl::StrCat(kRoot, kByteOrder), "little");
  int64_t all = 0;
  for (const FileTensor& tensor : document.tensors) all += tensor.bytes();
  int64_t done = 0;
  for (size_t i = 0; i < document.tensors.size() && written.ok(); ++i) {
    const int64_t bytes = document.tensors[i].bytes();
    zip.Begin(absl::StrCat(kRoot, "data/", i), bytes);
    for (int64_t at = 0; at < bytes && written.ok();) {
      const int64_t piece = std::min(kPieceBytes, bytes - at);
      const auto given = source(i, at, piece);
      if (!given.ok()) return given.status();
      written = zip.Append(*given);
      at += piece;
      done += piece;
      if (progress) progress(done, all);
    }
    if (written.ok()) written = zip.End();
  }
  if (written.ok()) written = zip.Write(absl::StrCat(kRoot, kVersion), "3\n");
  return written.ok() ? zip.Finish() : written;
}

}  // namespace optshard
