// Sends changed requests to the coordinator's and the shard owner's service for some seconds.
//   request_fuzzer [--seconds=N] [--seed=N]
// Ends with 1 where an answer is wrong or the services' process dies, and shows the request. The
// same seed sends the same requests, except for numbers that the services have chosen.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/message_mutator.h"
#include "tests/testing/in_child.h"

namespace optshard::testing {
namespace {

// After so many requests the coordinator begins a new job: the old one has failed long since.
constexpr int kRequestsPerJob = 200;
constexpr uint64_t kMostMutations = 4;
constexpr size_t kReportBytes = 1 << 20;

// What is being sent, in memory that outlives the process that sends it.
class Report {
 public:
  Report()
      : text_(static_cast<char*>(mmap(nullptr, kReportBytes, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (text_ == MAP_FAILED) std::abort();
  }
  void Set(int64_t number, const FuzzRequest& request) {
    const std::string text = absl::StrCat("request ", number, ", ", request.method, ":\n",
                                          request.message->DebugString());
    const size_t bytes = std::min(text.size(), kReportBytes - 1);
    std::memcpy(text_, text.data(), bytes);
    text_[bytes] = '\0';
  }
  const char* text() const { return text_; }

 private:
  char* const text_;
};

class Fuzzer {
 public:
  Fuzzer(uint64_t seed, Report& report) : mutator_(seed), report_(report) {}

  // The exit code.
  int Run(absl::Duration time) {
    const Clock& clock = Clock::Monotonic();
    const absl::Time end = clock.Now() + time;
    const std::unique_ptr<FuzzTarget> owner = MakeShardOwnerTarget();
    do {
      if (!Round(*owner) || !Round(*MakeCoordinatorTarget())) return 1;
    } while (clock.Now() < end);
    std::printf("sent %d requests, %d of them unchanged\n", static_cast<int>(sent_),
                static_cast<int>(unchanged_));
    return 0;
  }

 private:
  // Whether all answers were right.
  bool Round(FuzzTarget& target) {
    const std::vector<FuzzRequest> seeds = target.Seeds();
    mutator_.Forget();
    for (const FuzzRequest& seed : seeds) mutator_.Learn(*seed.message);
    for (int i = 0; i < kRequestsPerJob; ++i) {
      const FuzzRequest& seed = seeds[mutator_.Below(seeds.size())];
      FuzzRequest request{seed.method,
                          std::shared_ptr<google::protobuf::Message>(seed.message->New())};
      request.message->CopyFrom(*seed.message);
      const uint64_t mutations = mutator_.Below(kMostMutations + 1);
      for (uint64_t done = 0; done < mutations; ++done) mutator_.Mutate(request.message.get());
      unchanged_ += mutations == 0 ? 1 : 0;
      if (!SendOne(target, request)) return false;
    }
    return true;
  }

  bool SendOne(FuzzTarget& target, const FuzzRequest& request) {
    report_.Set(++sent_, request);
    const std::string wrong = target.Send(request);
    if (wrong.empty()) return true;
    std::fprintf(stderr, "%s\n", wrong.c_str());
    return false;
  }

  MessageMutator mutator_;
  Report& report_;
  int64_t sent_ = 0;
  int64_t unchanged_ = 0;
};

int Main(int argc, char** argv) {
  int seconds = 1;
  uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    const bool known =
        (absl::ConsumePrefix(&argument, "--seconds=") && absl::SimpleAtoi(argument, &seconds)) ||
        (absl::ConsumePrefix(&argument, "--seed=") && absl::SimpleAtoi(argument, &seed));
    if (known) continue;
    std::fprintf(stderr, "unknown argument %s\n", argv[i]);
    return 2;
  }
  Report report;
  // In a child, so that somebody is there to show the request which ended it.
  Child child([&] {
    SetLogLevel("off").IgnoreError();
    const int code = Fuzzer(seed, report).Run(absl::Seconds(seconds));
    std::fflush(nullptr);
    return code;
  });
  const int code = child.Wait();
  if (code == 0) return 0;
  std::fprintf(stderr, "ended with %d at --seed=%llu, %s\n", code,
               static_cast<unsigned long long>(seed), report.text());
  return 1;
}

}  // namespace
}  // namespace optshard::testing

int main(int argc, char** argv) { return optshard::testing::Main(argc, argv); }
