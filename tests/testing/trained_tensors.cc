#include "tests/testing/trained_tensors.h"

#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/fatal.h"

namespace optshard::testing {
namespace {

template <typename T>
T At(const std::string& bytes, int64_t element) {
  T value;
  std::memcpy(&value, bytes.data() + element * sizeof value, sizeof value);
  return value;
}

// Of the bits of an element.
uint64_t BitsAt(const TrainedTensor& tensor, int64_t element) {
  switch (SizeOf(tensor.dtype)) {
    case 2:
      return At<uint16_t>(tensor.bytes, element);
    case 4:
      return At<uint32_t>(tensor.bytes, element);
    default:
      return At<uint64_t>(tensor.bytes, element);
  }
}

bool IsNan(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::kFloat16:
      return (bits & 0x7fff) > 0x7c00;
    case DType::kBFloat16:
      return (bits & 0x7fff) > 0x7f80;
    case DType::kFloat32:
      return (bits & 0x7fffffff) > 0x7f800000;
    case DType::kFloat64:
      return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
  }
  return false;
}

// `part` lies in `whole`.
std::string FirstDifference(const TrainedTensor& whole, const TrainedTensor& part) {
  const size_t offset = part.first * SizeOf(part.dtype);
  if (whole.bytes.compare(offset, part.bytes.size(), part.bytes) == 0) return "";
  for (int64_t i = 0; i < part.elements(); ++i) {
    const uint64_t expected = BitsAt(whole, part.first + i);
    const uint64_t actual = BitsAt(part, i);
    if (expected == actual || (IsNan(part.dtype, expected) && IsNan(part.dtype, actual))) continue;
    return absl::StrFormat("element %d: expected %0*x, got %0*x", part.first + i,
                           2 * SizeOf(part.dtype), expected, 2 * SizeOf(part.dtype), actual);
  }
  return "";
}

template <typename Work>
void WithFile(const std::string& path, std::ios::openmode mode, const Work& work) {
  std::fstream file(path, mode | std::ios::binary);
  work(file);
  if (!file.good()) Fatal("%s: cannot be read or written", path);
}

void WriteText(std::iostream& file, const std::string& text) {
  const uint64_t size = text.size();
  file.write(reinterpret_cast<const char*>(&size), sizeof size);
  file.write(text.data(), static_cast<std::streamsize>(size));
}

std::string ReadText(std::iostream& file) {
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string text(file.good() ? size : 0, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

}  // namespace

std::string Difference(const std::vector<TrainedTensor>& unsharded,
                       const std::vector<std::vector<TrainedTensor>>& ranks) {
  struct Whole {
    const TrainedTensor* tensor;
    size_t bytes_seen = 0;
    bool seen = false;
  };
  std::map<std::string, Whole> wholes;
  for (const TrainedTensor& tensor : unsharded) wholes.emplace(tensor.name, Whole{&tensor});
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const TrainedTensor& part : ranks[rank]) {
      const std::string what = absl::StrCat(part.name, ", rank ", rank, ": ");
      const auto found = wholes.find(part.name);
      if (found == wholes.end()) return absl::StrCat(what, "the unsharded run has no such tensor");
      Whole& whole = found->second;
      if (part.dtype != whole.tensor->dtype ||
          part.first + part.elements() > whole.tensor->elements()) {
        return absl::StrCat(what, "is ", NameOf(part.dtype), ", elements ", part.first, " to ",
                            part.first + part.elements(), "; the unsharded run has ",
                            NameOf(whole.tensor->dtype), ", ", whole.tensor->elements());
      }
      const std::string difference = FirstDifference(*whole.tensor, part);
      if (!difference.empty()) return absl::StrCat(what, difference);
      whole.bytes_seen += part.bytes.size();
      whole.seen = true;
    }
  }
  for (const auto& [name, whole] : wholes) {
    if (whole.seen && whole.bytes_seen >= whole.tensor->bytes.size()) continue;
    return absl::StrCat(name, ": only ", whole.bytes_seen, " of ", whole.tensor->bytes.size(),
                        " bytes are on any rank");
  }
  return "";
}

void WriteTensors(const std::string& path, const std::vector<TrainedTensor>& tensors) {
  WithFile(path, std::ios::out, [&tensors](std::iostream& file) {
    WriteText(file, absl::StrCat(tensors.size()));
    for (const TrainedTensor& tensor : tensors) {
      WriteText(file, tensor.name);
      WriteText(file, absl::StrCat(tensor.first));
      WriteText(file, std::string(NameOf(tensor.dtype)));
      WriteText(file, tensor.bytes);
    }
  });
}

std::vector<TrainedTensor> ReadTensors(const std::string& path) {
  std::vector<TrainedTensor> tensors;
  WithFile(path, std::ios::in, [&tensors](std::iostream& file) {
    uint64_t count = 0;
    if (!absl::SimpleAtoi(ReadText(file), &count)) return;
    for (; count > 0 && file.good(); --count) {
      TrainedTensor tensor;
      tensor.name = ReadText(file);
      const bool is_number = absl::SimpleAtoi(ReadText(file), &tensor.first);
      const absl::StatusOr<DType> dtype = ParseDType(ReadText(file));
      if (!is_number || !dtype.ok()) return file.setstate(std::ios::failbit);
      tensor.dtype = *dtype;
      tensor.bytes = ReadText(file);
      tensors.push_back(std::move(tensor));
    }
  });
  return tensors;
}

}  // namespace optshard::testing
