// Sends changed requests to the coordinator's and the shard owner's service for some seconds.
//   request_fuzzer [--seconds=N] [--seed=N]
// Ends with 1 where an answer is wrong or the services' process dies, and shows the request. The
// same seed sends the same requests, except for numbers that the services have chosen.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/fuzzer_main.h"
#include "tests/fuzz/message_mutator.h"

namespace optshard::testing {
namespace {

// After so many requests the coordinator begins a new job: the old one has failed long since.
constexpr int kRequestsPerJob = 200;
constexpr uint64_t kMostMutations = 4;

class Fuzzer {
 public:
  Fuzzer(uint64_t seed, FuzzReport& report) : mutator_(seed), report_(report) {}

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
    report_.Set(absl::StrCat("request ", ++sent_, ", ", request.method, ":\n",
                             request.message->DebugString()));
    const std::string wrong = target.Send(request);
    if (wrong.empty()) return true;
    std::fprintf(stderr, "%s\n", wrong.c_str());
    return false;
  }

  MessageMutator mutator_;
  FuzzReport& report_;
  int64_t sent_ = 0;
  int64_t unchanged_ = 0;
};

}  // namespace
}  // namespace optshard::testing

int main(int argc, char** argv) {
  using optshard::testing::FuzzReport;
  return optshard::testing::FuzzerMain(argc, argv,
                                       [](uint64_t seed, absl::Duration time, FuzzReport& report) {
                                         return optshard::testing::Fuzzer(seed, report).Run(time);
                                       });
}
