#include "server/checkpoint/state_file/zip_writer.h"

#include <zlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/state_file/zip_format.h"

namespace optshard {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kExtraHeaderBytes = 4;
constexpr int64_t kSizes64Bytes = 16;

void Put(std::string& to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i) & 0xff);
}

}  // namespace

ZipWriter::ZipWriter(File& file, const ZipWriterOptions& options)
    : file_(file), options_(options) {}

void ZipWriter::PutEntry(const Entry& entry, uint16_t version, size_t extra_bytes,
                         std::string& header) const {
  Put(header, version, 2);
  Put(header, zip::kFlagUtf8, 2);
  Put(header, zip::kStored, 2);
  Put(header, 0, 4);  // no time: equal values make equal files
  Put(header, entry.crc32, 4);
  const uint64_t bytes = Needs64(entry.bytes) ? zip::kSee64 : static_cast<uint64_t>(entry.bytes);
  Put(header, bytes, 4);
  Put(header, bytes, 4);
  Put(header, entry.name.size(), 2);
  Put(header, extra_bytes, 2);
}

std::string ZipWriter::LocalHeader(const Entry& entry) const {
  const bool big = Needs64(entry.bytes);
  std::string extra;
  if (big) {
    Put(extra, zip::kExtra64, 2);
    Put(extra, kSizes64Bytes, 2);
    Put(extra, static_cast<uint64_t>(entry.bytes), 8);
    Put(extra, static_cast<uint64_t>(entry.bytes), 8);
  }
  const int64_t data = entry.header_offset + zip::kLocalBytes +
                       static_cast<int64_t>(entry.name.size() + extra.size()) + kExtraHeaderBytes;
  const int64_t padding = (kAlignment - data % kAlignment) % kAlignment;
  Put(extra, zip::kExtraPadding, 2);
  Put(extra, static_cast<uint64_t>(padding), 2);
  extra.append(static_cast<size_t>(padding), 'Z');

  std::string header;
  Put(header, zip::kLocalSignature, 4);
  PutEntry(entry, big ? zip::kVersion64 : zip::kVersion, extra.size(), header);
  absl::StrAppend(&header, entry.name, extra);
  return header;
}

std::string ZipWriter::CentralHeader(const Entry& entry) const {
  const bool big = Needs64(entry.bytes);
  const bool far = Needs64(entry.header_offset);
  std::string extra;
  if (big || far) {
    Put(extra, zip::kExtra64, 2);
    Put(extra, static_cast<uint64_t>((big ? kSizes64Bytes : 0) + (far ? 8 : 0)), 2);
    if (big) {
      Put(extra, static_cast<uint64_t>(entry.bytes), 8);
      Put(extra, static_cast<uint64_t>(entry.bytes), 8);
    }
    if (far) Put(extra, static_cast<uint64_t>(entry.header_offset), 8);
  }
  std::string header;
  Put(header, zip::kCentralSignature, 4);
  const uint16_t version = extra.empty() ? zip::kVersion : zip::kVersion64;
  Put(header, version, 2);  // by which it was made
  PutEntry(entry, version, extra.size(), header);
  header.append(2 + 2 + 2 + 4, '\0');  // no comment, the first disk, no attributes
  Put(header, far ? zip::kSee64 : static_cast<uint64_t>(entry.header_offset), 4);
  absl::StrAppend(&header, entry.name, extra);
  return header;
}

void ZipWriter::Begin(absl::string_view name, int64_t bytes) {
  Entry entry;
  entry.name = std::string(name);
  entry.bytes = bytes;
  entry.header_offset = next_;
  entry.crc32 = static_cast<uint32_t>(crc32(0, nullptr, 0));
  // It is written at the end, with the checksum; its size is known now.
  next_ += static_cast<int64_t>(LocalHeader(entry).size());
  entries_.push_back(std::move(entry));
}

absl::Status ZipWriter::Append(absl::string_view bytes) {
  Entry& entry = entries_.back();
  entry.crc32 = static_cast<uint32_t>(
      crc32_z(entry.crc32, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  const int64_t at = next_;
  next_ += static_cast<int64_t>(bytes.size());
  return file_.WriteAt(at, {bytes});
}

absl::Status ZipWriter::End() {
  return file_.WriteAt(entries_.back().header_offset, {LocalHeader(entries_.back())});
}

absl::Status ZipWriter::Write(absl::string_view name, absl::string_view bytes) {
  Begin(name, static_cast<int64_t>(bytes.size()));
  absl::Status written = Append(bytes);
  return written.ok() ? End() : written;
}

absl::Status ZipWriter::Finish() {
  std::string tail;
  for (const Entry& entry : entries_) tail += CentralHeader(entry);
  const int64_t central = next_;
  const auto central_bytes = static_cast<int64_t>(tail.size());
  const auto count = static_cast<int64_t>(entries_.size());
  const bool many = count >= zip::kSee64Short;
  const bool big = many || Needs64(central) || Needs64(central_bytes);
  if (big) {
    Put(tail, zip::kEnd64Signature, 4);
    Put(tail, zip::kEnd64Bytes - 12, 8);
    Put(tail, zip::kVersion64, 2);
    Put(tail, zip::kVersion64, 2);
    Put(tail, 0, 8);  // the first disk
    Put(tail, static_cast<uint64_t>(count), 8);
    Put(tail, static_cast<uint64_t>(count), 8);
    Put(tail, static_cast<uint64_t>(central_bytes), 8);
    Put(tail, static_cast<uint64_t>(central), 8);
    Put(tail, zip::kLocator64Signature, 4);
    Put(tail, 0, 4);
    Put(tail, static_cast<uint64_t>(central + central_bytes), 8);
    Put(tail, 1, 4);  // disk in all
  }
  Put(tail, zip::kEndSignature, 4);
  Put(tail, 0, 4);
  const uint64_t entries = many ? zip::kSee64Short : static_cast<uint64_t>(count);
  Put(tail, entries, 2);
  Put(tail, entries, 2);
  Put(tail, big ? zip::kSee64 : static_cast<uint64_t>(central_bytes), 4);
  Put(tail, big ? zip::kSee64 : static_cast<uint64_t>(central), 4);
  Put(tail, 0, 2);  // no comment
  next_ += static_cast<int64_t>(tail.size());
  return file_.WriteAt(central, {tail});
}

}  // namespace optshard
