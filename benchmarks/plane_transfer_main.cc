// A limit: the published bytes of a step through the project's Gloo plane, nothing else. Every rank
// publishes its half of the buckets to the other, both at once.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/file_rendezvous.h"
#include "benchmarks/round_protocol.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/dataplane/gloo/gloo_plane.h"
#include "common/ids.h"

namespace optshard {
namespace {

struct Flags {
  int rank = 0;
  int world_size = 1;
  std::string rendezvous;
  int64_t elements = 0;
  int64_t bucket_bytes = 4 << 20;
  int window = 16;
  absl::Duration timeout = absl::Seconds(60);
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-bench-transfer",
                    "One rank of a raw transfer. run_bench.py drives it.",
                    {"optshard-bench-transfer --rank=0 --world-size=2 --rendezvous=/tmp/empty "
                     "--elements=80000000"}});
  line.Add("rank", &flags.rank, "this process's rank");
  line.Add("world-size", &flags.world_size, "number of ranks").AtLeast(1);
  line.Add("rendezvous", &flags.rendezvous, "an empty directory in which the ranks meet")
      .Value("PATH")
      .Required();
  line.Add("elements", &flags.elements, "float32 parameters of all ranks together").AtLeast(0);
  line.Add("bucket-bytes", &flags.bucket_bytes, "size of a message").AtLeast(sizeof(float));
  line.Add("window", &flags.window, "messages under way").AtLeast(1);
  line.Add("timeout", &flags.timeout, "of the set-up and of a round");
  return line;
}

void ThrowUnlessOk(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

class Transfer {
 public:
  explicit Transfer(const Flags& flags)
      : flags_(flags),
        values_(flags.elements, static_cast<float>(flags.rank)),
        all_(flags.world_size) {
    std::iota(all_.begin(), all_.end(), 0);
    GlooPlaneOptions options;
    options.rank = flags.rank;
    options.world_size = flags.world_size;
    FileRendezvous rendezvous(flags.rendezvous);
    options.rendezvous = &rendezvous;
    options.deadline = Deadline();
    absl::StatusOr<std::unique_ptr<DataPlane>> plane = CreateGlooPlane(options);
    ThrowUnlessOk(plane.status());
    plane_ = *std::move(plane);
  }

  void OneRound() {
    const absl::Time deadline = Deadline();
    const auto window = static_cast<size_t>(flags_.window);
    std::deque<std::unique_ptr<Ticket>> pending;
    const auto finish_oldest = [&] {
      ThrowUnlessOk(pending.front()->Wait(deadline));
      pending.pop_front();
    };
    StepTag tag;
    tag.step = ++step_;
    tag.phase = StepPhase::kPublish;
    int64_t first = 0;
    const int64_t all = static_cast<int64_t>(values_.size());
    const int64_t most = flags_.bucket_bytes / static_cast<int64_t>(sizeof(float));
    while (first < all) {
      const int64_t elements = std::min(most, all - first);
      absl::StatusOr<std::unique_ptr<Ticket>> ticket =
          plane_->Publish(tag, ExecutionContext(), OwnerOf(tag.bucket), all_,
                          values_.data() + first, elements * sizeof(float));
      ThrowUnlessOk(ticket.status());
      if (pending.size() >= window) finish_oldest();
      pending.push_back(*std::move(ticket));
      first += elements;
      ++tag.bucket;
    }
    while (!pending.empty()) finish_oldest();
  }

  // How many elements hold the number of the rank that published them.
  std::map<std::string, double> Check() const {
    const int64_t most = flags_.bucket_bytes / static_cast<int64_t>(sizeof(float));
    int64_t good = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      const auto owner = OwnerOf(static_cast<int32_t>(static_cast<int64_t>(i) / most));
      if (values_[i] == static_cast<float>(owner)) ++good;
    }
    return {{"received", static_cast<double>(good) / static_cast<double>(values_.size())}};
  }

 private:
  int OwnerOf(int32_t bucket) const { return bucket % flags_.world_size; }
  absl::Time Deadline() const { return Clock::Monotonic().Now() + flags_.timeout; }

  const Flags flags_;
  std::vector<float> values_;
  std::vector<Rank> all_;
  std::unique_ptr<DataPlane> plane_;
  StepNumber step_ = 0;
};

Contestant SetUp(const Flags& flags) {
  const auto transfer = std::make_shared<Transfer>(flags);
  return {[transfer] { transfer->OneRound(); }, [transfer] { return transfer->Check(); }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
