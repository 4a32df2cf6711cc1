#include "server/node/admission_record.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/attach/attachment_rpc.h"
#include "common/cache_line.h"
#include "common/errors.h"
#include "server/node/doorbell_shape.h"

namespace optshard {
namespace {

size_t HyperparameterBytes(const AttachRequest& request) {
  return DoorbellShapeOf(request.spec).hyperparameter_bytes();
}

}  // namespace

// The request follows, and then, from the next cache line on, the hyperparameters.
struct AdmissionRecord::Head {
  std::atomic<uint64_t> synced;
  std::atomic<uint64_t> hyperparameter_bytes;  // at most
  std::atomic<uint64_t> request_bytes;
};

size_t AdmissionRecord::Bytes(const AttachRequest& request) {
  return WholeLines(sizeof(Head) + EncodeAttachRequest(request).size()) +
         StepBytes::Bytes(HyperparameterBytes(request));
}

AdmissionRecord::Head& AdmissionRecord::head() const { return *static_cast<Head*>(memory_); }

char* AdmissionRecord::request() const { return static_cast<char*>(memory_) + sizeof(Head); }

void AdmissionRecord::SetRequest(const AttachRequest& request) {
  const std::string bytes = EncodeAttachRequest(request);
  std::memcpy(this->request(), bytes.data(), bytes.size());
  head().hyperparameter_bytes.store(HyperparameterBytes(request), std::memory_order_release);
  head().request_bytes.store(bytes.size(), std::memory_order_release);
}

absl::Status AdmissionRecord::Check() const {
  if (bytes_ < sizeof(Head)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the record of an admission has ", bytes_, " bytes"));
  }
  const uint64_t request = head().request_bytes.load(std::memory_order_acquire);
  const uint64_t most = head().hyperparameter_bytes.load(std::memory_order_acquire);
  // Each of them first: their sum is computed only where it cannot overflow.
  if (request <= bytes_ && most <= bytes_ &&
      WholeLines(sizeof(Head) + request) + StepBytes::Bytes(most) <= bytes_) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the record of an admission has ", bytes_, " bytes, and says that the request alone has ",
      request, ", and that it has room for ", most, " bytes of hyperparameters, twice"));
}

absl::StatusOr<AttachRequest> AdmissionRecord::Request() const {
  absl::Status whole = Check();
  if (!whole.ok()) return whole;
  absl::StatusOr<AttachRequest> read = DecodeAttachRequest(
      absl::string_view(request(), head().request_bytes.load(std::memory_order_relaxed)));
  if (read.ok()) return read;
  return errors::WithContext(read.status(), "the record of an admission");
}

bool AdmissionRecord::synced() const { return head().synced.load(std::memory_order_acquire) != 0; }

void AdmissionRecord::SetSynced(bool synced) {
  head().synced.store(synced ? 1 : 0, std::memory_order_release);
}

StepBytes AdmissionRecord::hyperparameters() const {
  const size_t begin =
      WholeLines(sizeof(Head) + head().request_bytes.load(std::memory_order_relaxed));
  return StepBytes(static_cast<char*>(memory_) + begin,
                   head().hyperparameter_bytes.load(std::memory_order_relaxed));
}

}  // namespace optshard
