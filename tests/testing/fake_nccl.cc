#include "tests/testing/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/dtype_conversion.h"

namespace optshard::testing {
namespace {

enum class CallKind { kBroadcast, kSum, kAllGather, kSend, kReceive };

// One call of one rank.
struct FakeCall {
  CallKind kind = CallKind::kBroadcast;
  Rank rank = 0;
  Rank peer = 0;  // the root, or the other rank
  const char* from = nullptr;
  char* to = nullptr;
  size_t bytes = 0;
  DType dtype = DType::kFloat32;  // of a sum
  bool done = false;
};

bool IsCollective(const FakeCall& call) {
  return call.kind == CallKind::kBroadcast || call.kind == CallKind::kSum ||
         call.kind == CallKind::kAllGather;
}

std::string Describe(const FakeCall& call) {
  switch (call.kind) {
    case CallKind::kBroadcast:
      return absl::StrCat("broadcast ", call.bytes, " bytes from ", call.peer);
    case CallKind::kSum:
      return absl::StrCat("sum ", call.bytes, " bytes to ", call.peer);
    case CallKind::kAllGather:
      return absl::StrCat("gather ", call.bytes, " bytes");
    case CallKind::kSend:
      return absl::StrCat("send ", call.bytes, " bytes to ", call.peer);
    case CallKind::kReceive:
      return absl::StrCat("receive ", call.bytes, " bytes from ", call.peer);
  }
  return "";
}

// The calls of one group.
struct FakeLaunch {
  void* stream = nullptr;
  std::vector<std::shared_ptr<FakeCall>> calls;
  bool has_begun = false;
};

template <typename T>
void Read(DType dtype, const void* from, std::vector<T>& values) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype != DType::kFloat32) {
      return Widen(dtype, from, static_cast<int64_t>(values.size()), values.data());
    }
  }
  std::memcpy(values.data(), from, values.size() * sizeof(T));
}

template <typename T>
void Write(DType dtype, const std::vector<T>& values, void* to) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype != DType::kFloat32) {
      return Narrow(dtype, values.data(), static_cast<int64_t>(values.size()), to);
    }
  }
  std::memcpy(to, values.data(), values.size() * sizeof(T));
}

// From the last rank to the first: an order that no plan has.
template <typename T>
void SumBackwards(const std::vector<std::shared_ptr<FakeCall>>& calls, FakeCall& root) {
  const size_t count = root.bytes / SizeOf(root.dtype);
  std::vector<T> total(count), one(count);
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    Read(root.dtype, (*call)->from, one);
    for (size_t i = 0; i < count; ++i) total[i] = total[i] + one[i];
  }
  Write(root.dtype, total, root.to);
}

// `calls` by rank.
void RunCollective(const std::vector<std::shared_ptr<FakeCall>>& calls) {
  FakeCall& first = *calls[0];
  if (first.kind == CallKind::kSum) {
    FakeCall& root = *calls[first.peer];
    if (first.dtype == DType::kFloat64) {
      SumBackwards<double>(calls, root);
    } else {
      SumBackwards<float>(calls, root);
    }
  } else {
    for (const auto& to : calls) {
      if (first.kind == CallKind::kBroadcast) {
        if (to->rank != first.peer) std::memcpy(to->to, calls[first.peer]->from, first.bytes);
        continue;
      }
      for (const auto& from : calls) {
        std::memmove(to->to + from->rank * first.bytes, from->from, first.bytes);
      }
    }
  }
  for (const auto& call : calls) call->done = true;
}

bool Match(const FakeCall& a, const FakeCall& b) {
  return a.kind == b.kind && a.peer == b.peer && a.bytes == b.bytes && a.dtype == b.dtype;
}

}  // namespace

// What the ranks share. Work of streams takes its lock under that of the streams, so calls enqueue
// only after they have let go of it.
class FakeNcclState : public std::enable_shared_from_this<FakeNcclState> {
 public:
  FakeNcclState(const FakeDevices& devices, const FakeNccl::Options& options)
      : devices_(devices), options_(options) {}

  struct Member {
    bool connected = false;
    absl::Status failure;
    int64_t may_begin = std::numeric_limits<int64_t>::max();  // launches
    bool hangs_in_abort = false;
    bool aborting = false;
    bool aborted = false;
    bool destroyed = false;
    int busy = 0;                                       // polls until the launch is there
    std::shared_ptr<FakeLaunch> launching;              // not yet on its stream
    std::vector<std::shared_ptr<FakeLaunch>> launched;  // all
    std::map<Rank, std::deque<std::shared_ptr<FakeCall>>> sends, receives;  // begun, by peer
    int64_t next_collective = 0;
    std::vector<std::string> log;
    int64_t registered_bytes = 0;
  };

  absl::Status Connect(absl::string_view unique_id, Rank rank, int world_size)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (unique_id != kUniqueId) return absl::InvalidArgumentError("no such unique id");
    world_size_ = world_size;
    members_[rank].connected = true;
    return absl::OkStatus();
  }

  absl::StatusOr<NcclState> State(Rank rank) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::shared_ptr<FakeLaunch> launch;
    {
      absl::MutexLock lock(&mutex_);
      Member& member = members_[rank];
      if (!member.failure.ok()) return member.failure;
      for (Rank other = 0; other < world_size_; ++other) {
        if (!members_[other].connected) return NcclState::kBusy;
      }
      if (member.busy > 0) {
        --member.busy;
        return NcclState::kBusy;
      }
      launch = std::move(member.launching);
    }
    if (launch != nullptr) EnqueueLaunch(std::move(launch));
    return NcclState::kReady;
  }

  // The calls of a group.
  absl::Status Launch(Rank rank, std::shared_ptr<FakeLaunch> launch) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      Member& member = members_[rank];
      if (!member.failure.ok()) return member.failure;
      member.log.push_back(
          absl::StrJoin(launch->calls, " + ",
                        [](std::string* out, const auto& call) { *out += Describe(*call); }));
      member.launched.push_back(launch);
      member.busy = options_.busy_polls;
      if (member.busy > 0) {
        member.launching = std::move(launch);
        return absl::OkStatus();
      }
    }
    EnqueueLaunch(std::move(launch));
    return absl::OkStatus();
  }

  // Whether the rank may make a call that enqueues.
  absl::Status MayCall(Rank rank) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const Member& member = members_[rank];
    if (member.aborted || member.destroyed) return MisuseLocked("a call of an ended communicator");
    if (member.launching != nullptr) return MisuseLocked("a call while the last one is going on");
    return member.failure;
  }

  absl::Status Misuse(absl::string_view what) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return MisuseLocked(what);
  }

  void End(Rank rank, bool abort) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Member& member = members_[rank];
    if (member.aborted || member.destroyed) {
      MisuseLocked("a communicator that ended twice").IgnoreError();
    }
    if (!abort) {
      for (const auto& launch : member.launched) {
        for (const auto& call : launch->calls) {
          if (!call->done) MisuseLocked("Destroy before the work was complete").IgnoreError();
        }
      }
      member.destroyed = true;
      return;
    }
    member.aborting = true;
    const auto may_go_on = [&] {
      mutex_.AssertReaderHeld();
      return released_ || !member.hangs_in_abort;
    };
    mutex_.Await(absl::Condition(&may_go_on));
    member.aborted = true;
    member.launching = nullptr;
    // Nobody reads or writes this rank's memory any more.
    for (auto* begun : {&member.sends, &member.receives}) begun->clear();
    for (auto& [number, calls] : collectives_) {
      calls.erase(std::remove_if(calls.begin(), calls.end(),
                                 [&](const auto& call) { return call->rank == rank; }),
                  calls.end());
    }
    if (!options_.losses_are_errors) return;
    for (auto& [other, state] : members_) {
      if (other != rank) {
        state.failure.Update(
            absl::UnavailableError("a remote process exited or there was a "
                                   "network error"));
      }
    }
  }

  template <typename Change>
  void ForMember(Rank rank, const Change& change) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    change(members_[rank]);
  }

  std::vector<std::string> Misuses() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return misuses_;
  }

  void Release() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    released_ = true;
  }

  static constexpr const char* kUniqueId = "the unique id of the fake";

 private:
  void EnqueueLaunch(std::shared_ptr<FakeLaunch> launch) {
    void* const stream = launch->stream;
    devices_.Enqueue(stream, [state = shared_from_this(), launch = std::move(launch)] {
      return state->Advance(*launch);
    });
  }

  absl::Status MisuseLocked(absl::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    misuses_.emplace_back(what);
    return absl::InvalidArgumentError(absl::StrCat("NCCL: ", what));
  }

  // Of the launch whose turn it is. True once it is complete.
  bool Advance(FakeLaunch& launch) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Member& member = members_[launch.calls[0]->rank];
    if (member.aborted) return true;
    if (!launch.has_begun) {
      if (member.may_begin == 0) return false;
      --member.may_begin;
      launch.has_begun = true;
      for (const auto& call : launch.calls) {
        if (IsCollective(*call)) {
          collectives_[member.next_collective++].push_back(call);
        } else if (call->kind == CallKind::kSend) {
          member.sends[call->peer].push_back(call);
        } else {
          member.receives[call->peer].push_back(call);
        }
      }
      RunAllThatMatch();
    }
    return std::all_of(launch.calls.begin(), launch.calls.end(),
                       [](const auto& call) { return call->done; });
  }

  void RunAllThatMatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto found = collectives_.begin(); found != collectives_.end();) {
      auto& calls = found->second;
      const bool complete = calls.size() == static_cast<size_t>(world_size_) &&
                            std::all_of(calls.begin(), calls.end(),
                                        [&](const auto& call) { return Match(*call, *calls[0]); });
      if (!complete) {
        ++found;
        continue;
      }
      std::sort(calls.begin(), calls.end(),
                [](const auto& a, const auto& b) { return a->rank < b->rank; });
      RunCollective(calls);
      found = collectives_.erase(found);
    }
    for (auto& [from, sender] : members_) {
      for (auto& [to, sends] : sender.sends) {
        auto& receives = members_[to].receives[from];
        while (!sends.empty() && !receives.empty() &&
               sends.front()->bytes == receives.front()->bytes) {
          std::memcpy(receives.front()->to, sends.front()->from, sends.front()->bytes);
          sends.front()->done = receives.front()->done = true;
          sends.pop_front();
          receives.pop_front();
        }
      }
    }
  }

  FakeDevices devices_;
  const FakeNccl::Options options_;
  mutable absl::Mutex mutex_;
  int world_size_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Rank, Member> members_ ABSL_GUARDED_BY(mutex_);
  // By number on each rank: who has come.
  std::map<int64_t, std::vector<std::shared_ptr<FakeCall>>> collectives_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> misuses_ ABSL_GUARDED_BY(mutex_);
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

namespace {

// The group that a rank has open.
struct FakeGroup {
  bool open = false;
  std::thread::id thread;
  std::shared_ptr<FakeLaunch> launch;
};

class FakeCommunicator final : public NcclCommunicator {
 public:
  FakeCommunicator(std::shared_ptr<FakeNcclState> state, std::shared_ptr<FakeGroup> group,
                   Rank rank, int world_size)
      : state_(std::move(state)), group_(std::move(group)), rank_(rank), world_size_(world_size) {}

  absl::StatusOr<NcclState> state() override { return state_->State(rank_); }

  absl::Status Broadcast(void* data, size_t bytes, Rank root, void* stream) override {
    return Add(CallKind::kBroadcast, root, data, data, bytes, stream);
  }
  absl::Status Sum(const void* contribution, void* sum, int64_t elements, DType dtype, Rank root,
                   void* stream) override {
    return Add(CallKind::kSum, root, contribution, sum, elements * SizeOf(dtype), stream, dtype);
  }
  absl::Status AllGather(const void* contribution, void* gathered, size_t bytes_per_rank,
                         void* stream) override {
    return Add(CallKind::kAllGather, 0, contribution, gathered, bytes_per_rank, stream);
  }
  absl::Status Send(const void* data, size_t bytes, Rank to, void* stream) override {
    return Add(CallKind::kSend, to, data, nullptr, bytes, stream);
  }
  absl::Status Receive(void* data, size_t bytes, Rank from, void* stream) override {
    return Add(CallKind::kReceive, from, nullptr, data, bytes, stream);
  }

  absl::Status Register(void*, size_t bytes) override {
    absl::Status may = state_->MayCall(rank_);
    if (!may.ok()) return may;
    state_->ForMember(rank_, [&](auto& m) { m.registered_bytes += static_cast<int64_t>(bytes); });
    return absl::OkStatus();
  }

  void Destroy() override { state_->End(rank_, /*abort=*/false); }
  void Abort() override { state_->End(rank_, /*abort=*/true); }

 private:
  absl::Status Add(CallKind kind, Rank peer, const void* from, void* to, size_t bytes, void* stream,
                   DType dtype = DType::kFloat32) {
    absl::Status may = state_->MayCall(rank_);
    if (!may.ok()) return may;
    if (!group_->open) return state_->Misuse("a call outside a group");
    if (group_->thread != std::this_thread::get_id()) {
      return state_->Misuse("a call in a group of another thread");
    }
    if (peer < 0 || peer >= world_size_) return state_->Misuse("no such rank");
    if (group_->launch == nullptr) group_->launch = std::make_shared<FakeLaunch>();
    FakeLaunch& launch = *group_->launch;
    if (!launch.calls.empty() && launch.stream != stream) {
      return state_->Misuse("a group on two streams");
    }
    launch.stream = stream;
    launch.calls.push_back(std::make_shared<FakeCall>(FakeCall{
        kind, rank_, peer, static_cast<const char*>(from), static_cast<char*>(to), bytes, dtype}));
    return absl::OkStatus();
  }

  const std::shared_ptr<FakeNcclState> state_;
  const std::shared_ptr<FakeGroup> group_;
  const Rank rank_;
  const int world_size_;
};

class FakeNcclApi final : public NcclApi {
 public:
  FakeNcclApi(std::shared_ptr<FakeNcclState> state, Rank rank, int version)
      : state_(std::move(state)), rank_(rank), version_(version) {}

  int version() const override { return version_; }
  absl::StatusOr<std::string> NewUniqueId() override { return FakeNcclState::kUniqueId; }

  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(absl::string_view unique_id, Rank rank,
                                                            int world_size) override {
    const absl::Status connecting = state_->Connect(unique_id, rank, world_size);
    if (!connecting.ok()) return connecting;
    return std::unique_ptr<NcclCommunicator>(
        std::make_unique<FakeCommunicator>(state_, group_, rank, world_size));
  }

  absl::Status GroupStart() override {
    if (group_->open) return state_->Misuse("a group in a group");
    group_->open = true;
    group_->thread = std::this_thread::get_id();
    return absl::OkStatus();
  }

  absl::Status GroupEnd() override {
    if (!group_->open) return state_->Misuse("GroupEnd without GroupStart");
    group_->open = false;
    std::shared_ptr<FakeLaunch> launch = std::move(group_->launch);
    if (launch == nullptr) return absl::OkStatus();
    return state_->Launch(rank_, std::move(launch));
  }

 private:
  const std::shared_ptr<FakeNcclState> state_;
  const std::shared_ptr<FakeGroup> group_ = std::make_shared<FakeGroup>();
  const Rank rank_;
  const int version_;
};

}  // namespace

FakeNccl::FakeNccl(const FakeDevices& devices, const Options& options)
    : state_(std::make_shared<FakeNcclState>(devices, options)) {}

FakeNccl::~FakeNccl() { state_->Release(); }

std::shared_ptr<NcclApi> FakeNccl::MakeApi(Rank rank, int version) {
  return std::make_shared<FakeNcclApi>(state_, rank, version);
}

void FakeNccl::FailAsync(Rank rank, const absl::Status& failure) {
  state_->ForMember(rank, [&](auto& member) { member.failure = failure; });
}
void FakeNccl::Hang(Rank rank) { LetThrough(rank, 0); }

void FakeNccl::LetThrough(Rank rank, int64_t launches) {
  state_->ForMember(rank, [=](auto& member) { member.may_begin = launches; });
}
void FakeNccl::HangInAbort(Rank rank) {
  state_->ForMember(rank, [](auto& member) { member.hangs_in_abort = true; });
}
void FakeNccl::ReleaseAbort(Rank rank) {
  state_->ForMember(rank, [](auto& member) { member.hangs_in_abort = false; });
}

std::vector<std::string> FakeNccl::Launches(Rank rank) const {
  std::vector<std::string> launches;
  state_->ForMember(rank, [&](const auto& member) { launches = member.log; });
  return launches;
}
int64_t FakeNccl::RegisteredBytes(Rank rank) const {
  int64_t bytes = 0;
  state_->ForMember(rank, [&](const auto& member) { bytes = member.registered_bytes; });
  return bytes;
}
bool FakeNccl::HasConnected(Rank rank) const {
  bool connected = false;
  state_->ForMember(rank, [&](const auto& member) { connected = member.connected; });
  return connected;
}
bool FakeNccl::HasBegunToAbort(Rank rank) const {
  bool aborting = false;
  state_->ForMember(rank, [&](const auto& member) { aborting = member.aborting; });
  return aborting;
}
bool FakeNccl::HasAborted(Rank rank) const {
  bool aborted = false;
  state_->ForMember(rank, [&](const auto& member) { aborted = member.aborted; });
  return aborted;
}
bool FakeNccl::IsDestroyed(Rank rank) const {
  bool destroyed = false;
  state_->ForMember(rank, [&](const auto& member) { destroyed = member.destroyed; });
  return destroyed;
}

std::vector<std::string> FakeNccl::Misuses() const { return state_->Misuses(); }

}  // namespace optshard::testing
