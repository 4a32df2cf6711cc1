#include "common/dataplane/nccl/nccl_library.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/cuda/cuda_status.h"
#include "common/cuda/current_device.h"
#include "common/cuda/library_functions.h"

namespace optshard {
namespace {

// How long peers may take to end a communicator that all have closed.
constexpr absl::Duration kFinalizeTime = absl::Minutes(1);

constexpr int kOldest = NCCL_VERSION(2, 19, 0);  // the first with ncclCommRegister
constexpr int kTooNew = NCCL_VERSION(3, 0, 0);

// Up to 2.8 a version had a digit less.
std::string VersionText(int code) {
  return code < 10000 ? absl::StrFormat("%d.%d.%d", code / 1000, code / 100 % 10, code % 100)
                      : absl::StrFormat("%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
}

struct NcclFunctions {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommRegister) comm_register = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;

  // What a call returned, with NCCL's own words. A call of a nonblocking communicator that goes on
  // has not failed.
  absl::Status StatusOf(ncclResult_t result, absl::string_view what, ncclComm_t comm) const {
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    const char* const last = comm == nullptr ? nullptr : get_last_error(comm);
    const std::string text = absl::StrCat(
        "NCCL, ", what, ": ", get_error_string(result),
        last == nullptr || *last == '\0' ? "" : "; its last error: ", last == nullptr ? "" : last);
    switch (result) {
      case ncclRemoteError:
      case ncclSystemError:
        return absl::UnavailableError(text);
      case ncclInvalidArgument:
      case ncclInvalidUsage:
        return absl::InvalidArgumentError(text);
      default:
        return absl::InternalError(text);
    }
  }
};

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kBFloat16:
      return ncclBfloat16;
  }
  return ncclFloat32;
}

cudaStream_t StreamOf(void* stream) { return static_cast<cudaStream_t>(stream); }

class LibraryCommunicator final : public NcclCommunicator {
 public:
  LibraryCommunicator(const NcclFunctions& functions, ncclComm_t comm)
      : functions_(functions), comm_(comm) {}

  absl::StatusOr<NcclState> state() override {
    ncclResult_t result = ncclSuccess;
    const absl::Status asked = Status(functions_.comm_get_async_error(comm_, &result), "watching");
    if (!asked.ok()) return asked;
    if (result == ncclInProgress) return NcclState::kBusy;
    const absl::Status ready = Status(result, "asynchronously");
    if (!ready.ok()) return ready;
    return NcclState::kReady;
  }

  absl::Status Broadcast(void* data, size_t bytes, Rank root, void* stream) override {
    return Status(functions_.broadcast(data, data, bytes, ncclUint8, root, comm_, StreamOf(stream)),
                  "broadcasting");
  }

  absl::Status Sum(const void* contribution, void* sum, int64_t elements, DType dtype, Rank root,
                   void* stream) override {
    return Status(functions_.reduce(contribution, sum, static_cast<size_t>(elements), TypeOf(dtype),
                                    ncclSum, root, comm_, StreamOf(stream)),
                  "reducing");
  }

  absl::Status AllGather(const void* contribution, void* gathered, size_t bytes_per_rank,
                         void* stream) override {
    return Status(functions_.all_gather(contribution, gathered, bytes_per_rank, ncclUint8, comm_,
                                        StreamOf(stream)),
                  "gathering");
  }

  absl::Status Send(const void* data, size_t bytes, Rank to, void* stream) override {
    return Status(functions_.send(data, bytes, ncclUint8, to, comm_, StreamOf(stream)), "sending");
  }

  absl::Status Receive(void* data, size_t bytes, Rank from, void* stream) override {
    return Status(functions_.recv(data, bytes, ncclUint8, from, comm_, StreamOf(stream)),
                  "receiving");
  }

  // The communicator's end gives the handle back.
  absl::Status Register(void* data, size_t bytes) override {
    void* handle = nullptr;
    return Status(functions_.comm_register(comm_, data, bytes, &handle), "registering memory");
  }

  // The second half is local once the first is complete, for which a peer may be missing.
  void Destroy() override {
    static_cast<void>(functions_.comm_finalize(comm_));
    const absl::Time until = Clock::Monotonic().Now() + kFinalizeTime;
    absl::StatusOr<NcclState> now = state();
    while (now.ok() && *now != NcclState::kReady) {
      if (Clock::Monotonic().Now() >= until) return Abort();
      absl::SleepFor(absl::Milliseconds(1));
      now = state();
    }
    static_cast<void>(functions_.comm_destroy(comm_));
  }

  void Abort() override { static_cast<void>(functions_.comm_abort(comm_)); }

 private:
  absl::Status Status(ncclResult_t result, absl::string_view what) const {
    return functions_.StatusOf(result, what, comm_);
  }

  const NcclFunctions functions_;
  const ncclComm_t comm_;
};

class NcclLibrary final : public NcclApi {
 public:
  NcclLibrary(const NcclFunctions& functions, int version, int device)
      : functions_(functions), version_(version), device_(device) {}

  int version() const override { return version_; }

  absl::StatusOr<std::string> NewUniqueId() override {
    ncclUniqueId id;
    const absl::Status made =
        functions_.StatusOf(functions_.get_unique_id(&id), "making a unique id", nullptr);
    if (!made.ok()) return made;
    return std::string(id.internal, sizeof id.internal);
  }

  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(absl::string_view unique_id, Rank rank,
                                                            int world_size) override {
    ncclUniqueId id;
    if (unique_id.size() != sizeof id.internal) {
      return absl::InvalidArgumentError(absl::StrCat("a unique id of ", unique_id.size(),
                                                     " bytes; NCCL's have ", sizeof id.internal));
    }
    std::memcpy(id.internal, unique_id.data(), sizeof id.internal);
    const CurrentDevice current(device_);
    if (!current.status().ok()) return current.status();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const absl::Status begun = functions_.StatusOf(
        functions_.comm_init_rank_config(&comm, world_size, id, rank, &config), "connecting", comm);
    if (!begun.ok()) return begun;
    return std::unique_ptr<NcclCommunicator>(
        std::make_unique<LibraryCommunicator>(functions_, comm));
  }

  absl::Status GroupStart() override {
    return functions_.StatusOf(functions_.group_start(), "beginning a group", nullptr);
  }

  absl::Status GroupEnd() override {
    return functions_.StatusOf(functions_.group_end(), "launching a group", nullptr);
  }

 private:
  const NcclFunctions functions_;
  const int version_;
  const int device_;
};

}  // namespace

absl::Status CheckNcclVersion(int version) {
  if (version >= kOldest && version < kTooNew) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("NCCL is ", VersionText(version),
                                                    "; this program needs ", VersionText(kOldest),
                                                    " or later, below ", VersionText(kTooNew)));
}

absl::StatusOr<std::shared_ptr<NcclApi>> LoadNccl(const NcclLibraryOptions& options) {
  LibraryFunctions library({options.path.empty() ? "libnccl.so.2" : options.path, "NCCL",
                            "2.19 or later", "install libnccl2, or give the path of libnccl.so.2"});
  NcclFunctions functions;
  library.Find("ncclGetVersion", &functions.get_version);
  library.Find("ncclGetUniqueId", &functions.get_unique_id);
  library.Find("ncclGetErrorString", &functions.get_error_string);
  library.Find("ncclGetLastError", &functions.get_last_error);
  library.Find("ncclCommInitRankConfig", &functions.comm_init_rank_config);
  library.Find("ncclCommGetAsyncError", &functions.comm_get_async_error);
  library.Find("ncclCommRegister", &functions.comm_register);
  library.Find("ncclCommFinalize", &functions.comm_finalize);
  library.Find("ncclCommDestroy", &functions.comm_destroy);
  library.Find("ncclCommAbort", &functions.comm_abort);
  library.Find("ncclGroupStart", &functions.group_start);
  library.Find("ncclGroupEnd", &functions.group_end);
  library.Find("ncclBroadcast", &functions.broadcast);
  library.Find("ncclReduce", &functions.reduce);
  library.Find("ncclAllGather", &functions.all_gather);
  library.Find("ncclSend", &functions.send);
  library.Find("ncclRecv", &functions.recv);
  if (!library.status().ok()) return library.status();
  int version = 0;
  absl::Status fits =
      functions.StatusOf(functions.get_version(&version), "asking for its version", nullptr);
  if (fits.ok()) fits = CheckNcclVersion(version);
  if (!fits.ok()) return fits;
  return std::shared_ptr<NcclApi>(
      std::make_shared<NcclLibrary>(functions, version, options.device));
}

}  // namespace optshard
