// The parts of the zip format (PKWARE's APPNOTE 6.3) that reader and writer both know.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_FORMAT_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_FORMAT_H_

#include <cstdint>

namespace optshard::zip {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint32_t kEndSignature = 0x06054b50;

// Without names, extra fields and comments.
constexpr int64_t kLocalBytes = 30;
constexpr int64_t kCentralBytes = 46;
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kLocator64Bytes = 20;
constexpr int64_t kEndBytes = 22;

// Of a number that does not fit: it is in the extra field for 64 bits.
constexpr uint32_t kSee64 = UINT32_MAX;
constexpr uint16_t kSee64Short = UINT16_MAX;
constexpr uint16_t kExtra64 = 0x0001;
constexpr uint16_t kExtraPadding = 0x4246;  // "FB": PyTorch's

constexpr uint16_t kVersion = 20;
constexpr uint16_t kVersion64 = 45;
constexpr uint16_t kFlagEncrypted = 1 << 0;
constexpr uint16_t kFlagUtf8 = 1 << 11;
constexpr uint16_t kStored = 0;

}  // namespace optshard::zip

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_ZIP_FORMAT_H_
