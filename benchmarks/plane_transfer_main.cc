// A limit: the published bytes of a step through the project's Gloo plane, nothing else. Every rank
// publishes its half of the buckets to the other, both at once.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/bench_flags.h"
#include "benchmarks/file_rendezvous.h"
#include "benchmarks/round_protocol.h"
#include "common/clock.h"
#include "common/dataplane/gloo/gloo_plane.h"
#include "common/plan.h"

ABSL_FLAG(int, rank, 0, "this process's rank");
ABSL_FLAG(int, world_size, 1, "number of ranks");
ABSL_FLAG(std::string, rendezvous, "", "an empty directory in which the ranks meet");
ABSL_FLAG(int64_t, elements, 0, "float32 parameters, all ranks'");
ABSL_FLAG(int64_t, bucket_bytes, 4 << 20, "size of a message");
ABSL_FLAG(int, window, 16, "messages under way");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60), "of set-up and of a round");

namespace optshard {
namespace {

void ThrowUnlessOk(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

class Transfer {
 public:
  Transfer() : values_(absl::GetFlag(FLAGS_elements), static_cast<float>(Rank())) {
    GlooPlaneOptions options;
    options.rank = Rank();
    options.world_size = WorldSize();
    options.tree = MakeReductionTree(std::vector<std::string>(WorldSize(), "node"));
    FileRendezvous rendezvous(absl::GetFlag(FLAGS_rendezvous));
    options.rendezvous = &rendezvous;
    options.deadline = Deadline();
    absl::StatusOr<std::unique_ptr<DataPlane>> plane = CreateGlooPlane(options);
    ThrowUnlessOk(plane.status());
    plane_ = *std::move(plane);
  }

  void OneRound() {
    const absl::Time deadline = Deadline();
    const size_t window = std::max(1, absl::GetFlag(FLAGS_window));
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
    const int64_t most = absl::GetFlag(FLAGS_bucket_bytes) / static_cast<int64_t>(sizeof(float));
    while (first < all) {
      const int64_t elements = std::min(most, all - first);
      absl::StatusOr<std::unique_ptr<Ticket>> ticket =
          plane_->Publish(tag, ExecutionContext(), OwnerOf(tag.bucket), values_.data() + first,
                          elements * sizeof(float));
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
    const int64_t most = absl::GetFlag(FLAGS_bucket_bytes) / static_cast<int64_t>(sizeof(float));
    int64_t good = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      const auto owner = OwnerOf(static_cast<int32_t>(static_cast<int64_t>(i) / most));
      if (values_[i] == static_cast<float>(owner)) ++good;
    }
    return {{"received", static_cast<double>(good) / static_cast<double>(values_.size())}};
  }

 private:
  static int Rank() { return absl::GetFlag(FLAGS_rank); }
  static int WorldSize() { return absl::GetFlag(FLAGS_world_size); }
  static int OwnerOf(int32_t bucket) { return bucket % WorldSize(); }
  static absl::Time Deadline() { return Clock::Monotonic().Now() + absl::GetFlag(FLAGS_timeout); }

  std::vector<float> values_;
  std::unique_ptr<DataPlane> plane_;
  StepNumber step_ = 0;
};

Contestant SetUp() {
  const auto transfer = std::make_shared<Transfer>();
  return {[transfer] { transfer->OneRound(); }, [transfer] { return transfer->Check(); }};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::ParseBenchFlags(argc, argv, "One rank of a raw transfer; run_bench.py drives it.");
  return optshard::ServeRounds(optshard::SetUp);
}
