#include "server/checkpoint/state_file/zip_reader.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/checkpoint/state_file/zip_format.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

constexpr size_t kMostNameBytes = 1000;
constexpr int64_t kMostTailBytes = zip::kLocator64Bytes + zip::kEndBytes + UINT16_MAX;

uint64_t NumberAt(absl::string_view bytes, int64_t at, int size) {
  uint64_t number = 0;
  for (int i = size - 1; i >= 0; --i) {
    number = number << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(at + i)]);
  }
  return number;
}

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("it is no whole zip archive: ", what));
}

absl::StatusOr<std::string> ReadExactly(File& file, int64_t offset, int64_t bytes) {
  std::string read(static_cast<size_t>(bytes), '\0');
  const auto got = file.ReadAt(offset, absl::MakeSpan(read));
  if (!got.ok()) return got.status();
  if (*got < read.size()) return Wrong("it is cut off");
  return read;
}

struct Central {
  uint64_t entries = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
};

absl::StatusOr<Central> FindCentral(File& file, int64_t file_bytes) {
  const int64_t tail_bytes = std::min(file_bytes, kMostTailBytes);
  const int64_t tail_begin = file_bytes - tail_bytes;
  const auto tail = ReadExactly(file, tail_begin, tail_bytes);
  if (!tail.ok()) return tail.status();
  int64_t end = tail_bytes - zip::kEndBytes;
  while (end >= 0 && NumberAt(*tail, end, 4) != zip::kEndSignature) --end;
  if (end < 0) return Wrong("its end is missing; it may be cut off");
  Central central;
  central.entries = NumberAt(*tail, end + 10, 2);
  central.bytes = NumberAt(*tail, end + 12, 4);
  central.offset = NumberAt(*tail, end + 16, 4);
  const int64_t locator = end - zip::kLocator64Bytes;
  if (locator < 0 || NumberAt(*tail, locator, 4) != zip::kLocator64Signature) return central;
  const uint64_t end64 = NumberAt(*tail, locator + 8, 8);
  if (end64 > static_cast<uint64_t>(tail_begin + locator) ||
      static_cast<int64_t>(end64) > tail_begin + locator - zip::kEnd64Bytes) {
    return Wrong("its end for 64 bits lies outside it");
  }
  const auto record = ReadExactly(file, static_cast<int64_t>(end64), zip::kEnd64Bytes);
  if (!record.ok()) return record.status();
  if (NumberAt(*record, 0, 4) != zip::kEnd64Signature) return Wrong("its end for 64 bits is none");
  central.entries = NumberAt(*record, 32, 8);
  central.bytes = NumberAt(*record, 40, 8);
  central.offset = NumberAt(*record, 48, 8);
  return central;
}

// Takes the numbers that do not fit into 32 bits out of the extra fields.
absl::Status Read64(absl::string_view extra, uint64_t& bytes, uint64_t& packed, uint64_t& offset) {
  if (bytes != zip::kSee64 && packed != zip::kSee64 && offset != zip::kSee64) {
    return absl::OkStatus();
  }
  int64_t at = 0;
  const auto size = static_cast<int64_t>(extra.size());
  while (size - at >= 4) {
    const uint64_t id = NumberAt(extra, at, 2);
    const auto length = static_cast<int64_t>(NumberAt(extra, at + 2, 2));
    at += 4;
    if (length > size - at) break;
    if (id == zip::kExtra64) {
      const int64_t end = at + length;
      for (uint64_t* const number : {&bytes, &packed, &offset}) {
        if (*number != zip::kSee64) continue;
        if (end - at < 8) return Wrong("an entry's numbers of 64 bits are cut off");
        *number = NumberAt(extra, at, 8);
        at += 8;
      }
      return absl::OkStatus();
    }
    at += length;
  }
  return Wrong("an entry's numbers of 64 bits are missing");
}

struct Found {
  ZipEntry entry;
  int64_t header_offset = 0;
};

absl::Status CheckFound(absl::string_view name, uint64_t flags, uint64_t method) {
  if (name.empty() || name.size() > kMostNameBytes || HasControlCharacters(name)) {
    return Wrong("an entry's name is empty, too long or has control characters");
  }
  const std::string shown = absl::StrCat("its entry \"", absl::Utf8SafeCHexEscape(name), "\" is ");
  if ((flags & zip::kFlagEncrypted) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, "encrypted, which torch.save never does"));
  }
  if (method != zip::kStored) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown,
                     "compressed, which torch.save never does: unpack the archive and save "
                     "it again by torch.save"));
  }
  return absl::OkStatus();
}

// The next entry of the directory, which begins at `at`.
absl::StatusOr<Found> ReadCentralEntry(absl::string_view directory, int64_t& at) {
  const auto size = static_cast<int64_t>(directory.size());
  if (size - at < zip::kCentralBytes || NumberAt(directory, at, 4) != zip::kCentralSignature) {
    return Wrong("its directory is damaged");
  }
  const auto name_bytes = static_cast<int64_t>(NumberAt(directory, at + 28, 2));
  const auto extra_bytes = static_cast<int64_t>(NumberAt(directory, at + 30, 2));
  const auto comment_bytes = static_cast<int64_t>(NumberAt(directory, at + 32, 2));
  const int64_t name_at = at + zip::kCentralBytes;
  if (name_bytes + extra_bytes + comment_bytes > size - name_at) {
    return Wrong("its directory is cut off");
  }
  const auto part = [&](int64_t from, int64_t bytes) {
    return directory.substr(static_cast<size_t>(from), static_cast<size_t>(bytes));
  };
  Found found;
  found.entry.name = std::string(part(name_at, name_bytes));
  absl::Status checked =
      CheckFound(found.entry.name, NumberAt(directory, at + 8, 2), NumberAt(directory, at + 10, 2));
  if (!checked.ok()) return checked;
  found.entry.crc32 = static_cast<uint32_t>(NumberAt(directory, at + 16, 4));
  uint64_t packed = NumberAt(directory, at + 20, 4);
  uint64_t bytes = NumberAt(directory, at + 24, 4);
  uint64_t offset = NumberAt(directory, at + 42, 4);
  checked = Read64(part(name_at + name_bytes, extra_bytes), bytes, packed, offset);
  if (!checked.ok()) return checked;
  if (bytes > INT64_MAX || bytes != packed || offset > INT64_MAX) {
    return Wrong("an entry's size or place cannot be");
  }
  found.entry.bytes = static_cast<int64_t>(bytes);
  found.header_offset = static_cast<int64_t>(offset);
  at = name_at + name_bytes + extra_bytes + comment_bytes;
  return found;
}

// Where the entry's data begins, behind its own header.
absl::Status FindData(File& file, int64_t data_end, Found& found) {
  if (found.header_offset > data_end - zip::kLocalBytes) return Wrong("an entry lies outside it");
  const auto header = ReadExactly(file, found.header_offset, zip::kLocalBytes);
  if (!header.ok()) return header.status();
  if (NumberAt(*header, 0, 4) != zip::kLocalSignature) {
    return Wrong("an entry does not begin where its directory says");
  }
  found.entry.offset_bytes = found.header_offset + zip::kLocalBytes +
                             static_cast<int64_t>(NumberAt(*header, 26, 2)) +
                             static_cast<int64_t>(NumberAt(*header, 28, 2));
  if (found.entry.offset_bytes > data_end ||
      found.entry.bytes > data_end - found.entry.offset_bytes) {
    return Wrong(absl::StrCat("its entry \"", absl::Utf8SafeCHexEscape(found.entry.name), "\" of ",
                              found.entry.bytes, " bytes lies outside it"));
  }
  return absl::OkStatus();
}

absl::Status CheckApart(std::vector<Found>& all) {
  std::sort(all.begin(), all.end(),
            [](const Found& a, const Found& b) { return a.header_offset < b.header_offset; });
  for (size_t i = 1; i < all.size(); ++i) {
    const ZipEntry& before = all[i - 1].entry;
    if (all[i].header_offset < before.offset_bytes + before.bytes) {
      return Wrong(absl::StrCat("its entries \"", absl::Utf8SafeCHexEscape(before.name),
                                "\" and \"", absl::Utf8SafeCHexEscape(all[i].entry.name),
                                "\" overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ZipEntry>> ReadZipDirectory(File& file) {
  const auto size = file.Size();
  if (!size.ok()) return size.status();
  const auto central = FindCentral(file, *size);
  if (!central.ok()) return central.status();
  if (central->entries > static_cast<uint64_t>(kMaxZipEntries) ||
      central->bytes > static_cast<uint64_t>(kMaxZipDirectoryBytes)) {
    return Wrong(absl::StrCat("it has ", central->entries, " entries and a directory of ",
                              central->bytes, " bytes, at most ", kMaxZipEntries, " and ",
                              kMaxZipDirectoryBytes));
  }
  if (central->offset > static_cast<uint64_t>(*size) ||
      central->bytes > static_cast<uint64_t>(*size) - central->offset) {
    return Wrong("its directory lies outside it");
  }
  const auto data_end = static_cast<int64_t>(central->offset);
  const auto directory = ReadExactly(file, data_end, static_cast<int64_t>(central->bytes));
  if (!directory.ok()) return directory.status();
  std::vector<Found> all;
  int64_t at = 0;
  for (uint64_t i = 0; i < central->entries; ++i) {
    auto found = ReadCentralEntry(*directory, at);
    if (!found.ok()) return found.status();
    absl::Status placed = FindData(file, data_end, *found);
    if (!placed.ok()) return placed;
    all.push_back(*std::move(found));
  }
  absl::Status apart = CheckApart(all);
  if (!apart.ok()) return apart;
  std::vector<ZipEntry> entries;
  entries.reserve(all.size());
  for (Found& found : all) entries.push_back(std::move(found.entry));
  std::sort(entries.begin(), entries.end(),
            [](const ZipEntry& a, const ZipEntry& b) { return a.name < b.name; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].name == entries[i - 1].name) {
      return Wrong(absl::StrCat("its entry \"", absl::Utf8SafeCHexEscape(entries[i].name),
                                "\" is there twice"));
    }
  }
  return entries;
}

}  // namespace optshard
