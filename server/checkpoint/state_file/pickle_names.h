// Opcodes and names of pickles that the reader and the writer both know.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_NAMES_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_NAMES_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "server/checkpoint/safetensors.h"

namespace optshard {

constexpr char kPickleProtocol = 2;  // torch.save's

namespace pickle {

// As Python's pickletools names them.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyDict = '}',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
};

constexpr char kOrderedDict[] = "collections OrderedDict";
constexpr char kRebuildTensor[] = "torch._utils _rebuild_tensor_v2";
constexpr char kRebuildParameter[] = "torch._utils _rebuild_parameter";
constexpr char kStorage[] = "storage";

struct StorageClass {
  absl::string_view name;  // in the module torch
  TensorType type;
};
constexpr std::array<StorageClass, 10> kStorageClasses = {{
    {"BoolStorage", TensorType::kBool},
    {"ByteStorage", TensorType::kU8},
    {"CharStorage", TensorType::kI8},
    {"ShortStorage", TensorType::kI16},
    {"HalfStorage", TensorType::kF16},
    {"BFloat16Storage", TensorType::kBF16},
    {"IntStorage", TensorType::kI32},
    {"FloatStorage", TensorType::kF32},
    {"LongStorage", TensorType::kI64},
    {"DoubleStorage", TensorType::kF64},
}};

}  // namespace pickle
}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_NAMES_H_
