#include "server/node/admission_record.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/attach/attachment_rpc.h"
#include "common/errors.h"

namespace optshard {

struct AdmissionRecord::Head {
  std::atomic<uint64_t> synced;
  std::atomic<uint64_t> request_bytes;
};

size_t AdmissionRecord::Bytes(const AttachRequest& request) {
  return sizeof(Head) + EncodeAttachRequest(request).size();
}

AdmissionRecord::Head& AdmissionRecord::head() const { return *static_cast<Head*>(memory_); }

char* AdmissionRecord::request() const { return static_cast<char*>(memory_) + sizeof(Head); }

void AdmissionRecord::SetRequest(const AttachRequest& request) {
  const std::string bytes = EncodeAttachRequest(request);
  std::memcpy(this->request(), bytes.data(), bytes.size());
  head().request_bytes.store(bytes.size(), std::memory_order_release);
}

absl::StatusOr<AttachRequest> AdmissionRecord::Request() const {
  if (bytes_ < sizeof(Head)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the record of an admission has ", bytes_, " bytes"));
  }
  const uint64_t bytes = head().request_bytes.load(std::memory_order_acquire);
  if (bytes > bytes_ - sizeof(Head)) {
    return absl::InvalidArgumentError(absl::StrCat("the record of an admission has ", bytes_,
                                                   " bytes, and says that the request alone has ",
                                                   bytes));
  }
  absl::StatusOr<AttachRequest> read = DecodeAttachRequest(absl::string_view(request(), bytes));
  if (read.ok()) return read;
  return errors::WithContext(read.status(), "the record of an admission");
}

bool AdmissionRecord::synced() const { return head().synced.load(std::memory_order_acquire) != 0; }

void AdmissionRecord::SetSynced(bool synced) {
  head().synced.store(synced ? 1 : 0, std::memory_order_release);
}

}  // namespace optshard
