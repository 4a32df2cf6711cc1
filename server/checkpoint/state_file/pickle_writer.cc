#include "server/checkpoint/state_file/pickle_writer.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/parameter_space.h"
#include "server/checkpoint/name_escape.h"
#include "server/checkpoint/state_file/pickle_names.h"
#include "server/checkpoint/strict_json.h"

namespace optshard {
namespace {

constexpr size_t kLongestRemembered = 64;
constexpr int kLongBytes = 8;

class Pickler {
 public:
  explicit Pickler(const FileDocument& document) : document_(document) {}

  absl::StatusOr<std::string> Run() {
    Put(pickle::kProto);
    out_ += kPickleProtocol;
    Write(document_.value);
    Put(pickle::kStop);
    if (!error_.ok()) return error_;
    return std::move(out_);
  }

 private:
  void Put(uint8_t opcode) { out_ += static_cast<char>(opcode); }

  void PutBytes(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  // What was written before is fetched; otherwise `write` writes it.
  template <typename Write>
  void Remembered(const std::string& key, Write write) {
    const auto known = memo_.find(key);
    if (known != memo_.end()) {
      PutIndexed(pickle::kBinGet, pickle::kLongBinGet, known->second);
      return;
    }
    write();
    const auto index = static_cast<uint32_t>(memo_.size());
    memo_.emplace(key, index);
    PutIndexed(pickle::kBinPut, pickle::kLongBinPut, index);
  }

  void PutIndexed(uint8_t opcode, uint8_t long_opcode, uint32_t index) {
    const bool is_short = index <= UINT8_MAX;
    Put(is_short ? opcode : long_opcode);
    PutBytes(index, is_short ? 1 : 4);
  }

  void WriteGlobal(absl::string_view name) {
    Remembered(absl::StrCat("global ", name), [&] {
      Put(pickle::kGlobal);
      absl::StrAppend(&out_, absl::StrReplaceAll(name, {{" ", "\n"}}), "\n");
    });
  }

  void WriteText(absl::string_view text) {
    if (text.size() > UINT32_MAX) {
      error_ = absl::InvalidArgumentError(
          absl::StrCat("a text has ", text.size(), " bytes; a .pt file takes at most 4 GiB"));
      return;
    }
    if (!JsonQuoted(text).ok()) {
      error_ = absl::InvalidArgumentError(absl::StrCat(
          "the text \"", EscapeName(text.substr(0, kLongestRemembered)), "\" is not UTF-8"));
      return;
    }
    const auto write = [&] {
      Put(pickle::kBinUnicode);
      PutBytes(text.size(), 4);
      absl::StrAppend(&out_, text);
    };
    if (text.size() > kLongestRemembered) {
      write();
    } else {
      Remembered(absl::StrCat("text ", text), write);
    }
  }

  void WriteInt(int64_t value) {
    if (value >= 0 && value <= UINT8_MAX) {
      Put(pickle::kBinInt1);
      PutBytes(static_cast<uint64_t>(value), 1);
    } else if (value >= 0 && value <= UINT16_MAX) {
      Put(pickle::kBinInt2);
      PutBytes(static_cast<uint64_t>(value), 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      Put(pickle::kBinInt);
      PutBytes(static_cast<uint64_t>(value), 4);
    } else {
      Put(pickle::kLong1);
      PutBytes(kLongBytes, 1);
      PutBytes(static_cast<uint64_t>(value), kLongBytes);
    }
  }

  void WriteNumber(double number) {
    uint64_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    Put(pickle::kBinFloat);
    for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i) & 0xff);
  }

  // Around elements that are written between Begin and End.
  void BeginTuple(size_t size) {
    if (size > 3) Put(pickle::kMark);
  }
  void EndTuple(size_t size) {
    constexpr uint8_t kBySize[] = {pickle::kEmptyTuple, pickle::kTuple1, pickle::kTuple2,
                                   pickle::kTuple3, pickle::kTuple};
    Put(kBySize[size > 3 ? 4 : size]);
  }

  void WriteInts(const std::vector<int64_t>& values) {
    BeginTuple(values.size());
    for (const int64_t value : values) WriteInt(value);
    EndTuple(values.size());
  }

  void WriteTensor(size_t index) {
    const FileTensor& tensor = document_.tensors[index];
    absl::string_view storage;
    for (const pickle::StorageClass& known : pickle::kStorageClasses) {
      if (known.type == tensor.type) storage = known.name;
    }
    if (storage.empty()) {
      error_ = absl::InvalidArgumentError(
          absl::StrCat("a tensor of ", NameOf(tensor.type),
                       " cannot be in a .pt file; a .safetensors file takes it"));
      return;
    }
    WriteGlobal(pickle::kRebuildTensor);
    Put(pickle::kMark);
    Put(pickle::kMark);
    WriteText(pickle::kStorage);
    WriteGlobal(absl::StrCat("torch ", storage));
    WriteText(absl::StrCat(index));
    WriteText("cpu");
    WriteInt(ElementsOf(tensor.shape));
    Put(pickle::kTuple);
    Put(pickle::kBinPersId);
    WriteInt(0);  // the offset
    WriteInts(tensor.shape);
    WriteInts(tensor.strides);
    Put(pickle::kNewFalse);  // requires no gradient
    WriteGlobal(pickle::kOrderedDict);
    Put(pickle::kEmptyTuple);
    Put(pickle::kReduce);  // without hooks
    Put(pickle::kTuple);
    Put(pickle::kReduce);
  }

  void Write(const FileValue& value) {
    const std::vector<FileValue>& elements = value.elements;
    switch (value.kind) {
      case FileKind::kNone:
        return Put(pickle::kNone);
      case FileKind::kFlag:
        return Put(value.whole != 0 ? pickle::kNewTrue : pickle::kNewFalse);
      case FileKind::kInt:
        return WriteInt(value.whole);
      case FileKind::kNumber:
        return WriteNumber(value.number);
      case FileKind::kText:
        return WriteText(value.text);
      case FileKind::kTensor:
        return WriteTensor(static_cast<size_t>(value.whole));
      case FileKind::kTuple:
        BeginTuple(elements.size());
        for (const FileValue& element : elements) Write(element);
        return EndTuple(elements.size());
      case FileKind::kList:
        return WriteAll(pickle::kEmptyList, elements, pickle::kAppends);
      case FileKind::kDict:
        return WriteAll(pickle::kEmptyDict, elements, pickle::kSetItems);
    }
  }

  void WriteAll(uint8_t empty, const std::vector<FileValue>& elements, uint8_t add) {
    Put(empty);
    if (elements.empty()) return;
    Put(pickle::kMark);
    for (const FileValue& element : elements) Write(element);
    Put(add);
  }

  const FileDocument& document_;
  std::string out_;
  absl::flat_hash_map<std::string, uint32_t> memo_;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<std::string> PickleOf(const FileDocument& document) {
  return Pickler(document).Run();
}

}  // namespace optshard
