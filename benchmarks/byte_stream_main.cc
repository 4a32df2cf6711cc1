// A limit: bytes that come in streams of gRPC's ByteBuffers from all ranks to rank 0, which copies
// each into memory. No optimizer, no messages, no checks.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "benchmarks/huge_page_array.h"
#include "benchmarks/round_protocol.h"
#include "common/cli/command_line.h"
#include "common/rpc/channel_rpc.h"

namespace optshard {
namespace {

struct Flags {
  int rank = 0;
  int world_size = 1;
  int64_t bytes = 640'000'000;
  int64_t message_bytes = 2 << 20;
  std::string addresses = "127.0.0.1:4960";
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-bench-bytes",
       "One rank of a bare stream of bytes over gRPC to rank 0. run_bench.py drives it.",
       {"optshard-bench-bytes --addresses=127.0.0.1:4960"}});
  line.Add("rank", &flags.rank, "this process's rank").AtLeast(0);
  line.Add("world-size", &flags.world_size, "number of ranks").AtLeast(1);
  line.Add("bytes", &flags.bytes, "of all ranks together").AtLeast(1);
  line.Add("message-bytes", &flags.message_bytes, "of one message").AtLeast(1);
  line.Add("addresses", &flags.addresses, "where the ranks listen, by rank, with commas between");
  return line;
}

// Sends all of the memory once.
class Sending final : public grpc::ServerGenericBidiReactor {
 public:
  Sending(const char* memory, int64_t bytes, int64_t message_bytes)
      : memory_(memory), bytes_(bytes), message_bytes_(message_bytes) {
    Next();
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      Next();
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    const int64_t size = std::min(message_bytes_, bytes_ - sent_);
    if (size == 0) {
      Finish(grpc::Status::OK);
      return;
    }
    const grpc::Slice slice(const_cast<char*>(memory_ + sent_), size, grpc::Slice::STATIC_SLICE);
    message_ = grpc::ByteBuffer(&slice, 1);
    sent_ += size;
    StartWrite(&message_);
  }

  const char* const memory_;
  const int64_t bytes_;
  const int64_t message_bytes_;
  int64_t sent_ = 0;
  grpc::ByteBuffer message_;
};

class Service final : public grpc::CallbackGenericService {
 public:
  Service(const char* memory, int64_t bytes, int64_t message_bytes)
      : memory_(memory), bytes_(bytes), message_bytes_(message_bytes) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Sending(memory_, bytes_, message_bytes_);
  }

 private:
  const char* const memory_;
  const int64_t bytes_;
  const int64_t message_bytes_;
};

// Copies what comes from one rank.
class Receiving final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Receiving(grpc::GenericStub& stub, char* to) : to_(to) {
    stub.PrepareBidiStreamingCall(&context_, "/bench/Bytes", grpc::StubOptions(), this);
    StartRead(&message_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    std::vector<grpc::Slice> slices;
    if (!message_.Dump(&slices).ok()) return;
    for (const grpc::Slice& slice : slices) {
      std::memcpy(to_, slice.begin(), slice.size());
      to_ += slice.size();
    }
    message_.Clear();
    StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    status_ = status;
    done_.Notify();
  }
  char* Wait() {
    done_.WaitForNotification();
    if (!status_.ok()) throw std::runtime_error(status_.error_message());
    return to_;
  }

 private:
  char* to_;
  grpc::ClientContext context_;
  grpc::ByteBuffer message_;
  grpc::Status status_;
  absl::Notification done_;
};

Contestant SetUp(const Flags& flags) {
  // glibc gives the memory of each message that was copied back to the system, and the next one
  // faults it in again: that takes as long as the stream itself. Either option alone does not help:
  // with the first, messages are mapped one by one.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  const std::vector<std::string> addresses = absl::StrSplit(flags.addresses, ',');
  const int64_t share = flags.bytes / flags.world_size;
  const auto memory =
      std::make_shared<HugePageArray>(MakeHugePageArray(share / sizeof(float) + 1, 1.0f));
  const auto service = std::make_shared<Service>(reinterpret_cast<const char*>(memory->get()),
                                                 share, flags.message_bytes);
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(service.get());
  builder.AddListeningPort(addresses.at(flags.rank), grpc::InsecureServerCredentials());
  const std::shared_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) throw std::runtime_error("cannot listen at " + addresses[flags.rank]);
  const auto check = [server, service, memory] { return std::map<std::string, double>(); };
  if (flags.rank != 0) return {[] {}, check};
  const auto to =
      std::make_shared<HugePageArray>(MakeHugePageArray(flags.bytes / sizeof(float) + 1, 0.0f));
  return {[=] {
            std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
            std::vector<std::unique_ptr<Receiving>> streams;
            char* next = reinterpret_cast<char*>(to->get());
            for (const std::string& address : addresses) {
              stubs.push_back(std::make_unique<grpc::GenericStub>(MakeBulkChannel(address)));
              streams.push_back(std::make_unique<Receiving>(*stubs.back(), next));
              next += share;
            }
            for (const auto& stream : streams) stream->Wait();
          },
          check};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
