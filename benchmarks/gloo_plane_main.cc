// What the Gloo plane costs over Gloo itself: two processes publish to each other, at once, in
// buckets, against one large unbound buffer each way. Interleaved round by round; times are the
// slower rank's; ratios are medians of the rounds' ratios. docs/dataplane.md has figures.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/file_rendezvous.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "common/dataplane/gloo/gloo_plane.h"

namespace optshard {
namespace {

struct Flags {
  int64_t megabytes = 160;
  int rounds = 15;
  std::string bucket_kib = "256,512,1024,2048,4096,8192,16384";
  std::string network = "lo";
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-bench-gloo",
                    "Compares the Gloo plane with Gloo itself, between two processes.",
                    {"optshard-bench-gloo --megabytes=40 --bucket-kib=1024,4096"}});
  line.Add("megabytes", &flags.megabytes, "published by each rank, in 10^6 bytes").AtLeast(1);
  line.Add("rounds", &flags.rounds, "rounds that are measured, after two that are not").AtLeast(1);
  line.Add("bucket-kib", &flags.bucket_kib, "bucket sizes in KiB").Value("N,N,...");
  line.Add("network", &flags.network, "network interface or address");
  return line;
}

constexpr int kWorldSize = 2;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Get(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

absl::Time Deadline() { return Clock::Monotonic().Now() + absl::Seconds(60); }

// Raw Gloo: connected as the plane connects, one send and one receive a round.
std::unique_ptr<GlooWire> ConnectRaw(Rank rank, const std::string& network,
                                     Rendezvous& rendezvous) {
  GlooWire::Options options;
  options.rank = rank;
  options.world_size = kWorldSize;
  options.network = network;
  options.connect_timeout = absl::Seconds(30);
  auto wire = Get(MakeGlooWire(options));
  const Rank peer = 1 - rank;
  Check(rendezvous.Put(absl::StrCat("raw", rank), Get(wire->Listen(peer))));
  Check(wire->Connect(peer, Get(rendezvous.Get(absl::StrCat("raw", peer), Deadline()))));
  return wire;
}

class Bench {
 public:
  Bench(const Flags& flags, Rank rank, Rendezvous& rendezvous)
      : rank_(rank),
        bytes_(flags.megabytes * 1000 * 1000),
        memory_{std::vector<float>(bytes_ / 4, 1.5f), std::vector<float>(bytes_ / 4, 2.5f)},
        reduced_(bytes_ / 4),
        raw_(ConnectRaw(rank, flags.network, rendezvous)) {
    GlooPlaneOptions options;
    options.rank = rank;
    options.world_size = kWorldSize;
    options.rendezvous = &rendezvous;
    options.network = flags.network;
    options.deadline = Deadline();
    plane_ = Get(CreateGlooPlane(options));
  }

  void Raw() {
    auto receive = Get(raw_->Receive(1 - rank_, 1, memory_[1 - rank_].data(), bytes_));
    auto send = Get(raw_->Send(1 - rank_, 1, memory_[rank_].data(), bytes_));
    std::string why;
    if (receive->Wait(absl::Seconds(60), &why) != Transfer::Outcome::kDone ||
        send->Wait(absl::Seconds(60), &why) != Transfer::Outcome::kDone) {
      Check(absl::UnavailableError(why));
    }
  }

  void Publish(int64_t bucket_bytes) {
    ForBuckets(bucket_bytes, [&](const StepTag& tag, Rank owner, int64_t offset, int64_t bytes) {
      return plane_->Publish(tag, {}, owner, {0, 1},
                             reinterpret_cast<char*>(memory_[owner].data()) + offset, bytes);
    });
  }

  void Reduce(int64_t bucket_bytes) {
    ForBuckets(bucket_bytes, [&](const StepTag& tag, Rank owner, int64_t offset, int64_t bytes) {
      return plane_->Reduce(tag, {}, AverageOver({{{0, 1}}}, owner), DType::kFloat32,
                            memory_[owner].data() + offset / 4, reduced_.data() + offset / 4,
                            bytes / 4);
    });
  }

  void Gather() {
    uint64_t mine = 1;
    uint64_t all[kWorldSize];
    auto ticket = plane_->AllGather({0, step_++, 0, StepPhase::kCommit}, {}, &mine, all, 8);
    Check(Get(std::move(ticket))->Wait(Deadline()));
  }

  // Milliseconds that `run` took on the slower rank.
  double Time(const std::function<void()>& run) {
    Gather();
    const absl::Time start = Clock::Monotonic().Now();
    run();
    double mine = absl::ToDoubleMilliseconds(Clock::Monotonic().Now() - start);
    double all[kWorldSize];
    auto ticket =
        plane_->AllGather({0, step_++, 0, StepPhase::kControl}, {}, &mine, all, sizeof(mine));
    Check(Get(std::move(ticket))->Wait(Deadline()));
    return std::max(all[0], all[1]);
  }

  void Close() { Check(plane_->Close(Deadline())); }

 private:
  // Starts `operation` for every bucket, the owners taking turns, and waits for all in order.
  template <typename Operation>
  void ForBuckets(int64_t bucket_bytes, const Operation& operation) {
    std::vector<std::unique_ptr<Ticket>> tickets;
    StepTag tag{0, step_++, 0, StepPhase::kPublish};
    for (int64_t offset = 0; offset < bytes_; offset += bucket_bytes) {
      for (Rank owner = 0; owner < kWorldSize; ++owner) {
        ++tag.bucket;
        tickets.push_back(
            Get(operation(tag, owner, offset, std::min(bucket_bytes, bytes_ - offset))));
      }
    }
    for (auto& ticket : tickets) Check(ticket->Wait(Deadline()));
  }

  const Rank rank_;
  const int64_t bytes_;
  std::vector<float> memory_[kWorldSize];  // what each rank publishes
  std::vector<float> reduced_;
  std::unique_ptr<GlooWire> raw_;
  std::unique_ptr<DataPlane> plane_;
  StepNumber step_ = 1;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void RunRank(const Flags& flags, Rank rank, const std::string& folder) {
  FileRendezvous rendezvous(folder);
  Bench bench(flags, rank, rendezvous);
  std::vector<std::pair<std::string, std::function<void()>>> contestants = {
      {"raw gloo", [&] { bench.Raw(); }}, {"raw gloo again", [&] { bench.Raw(); }}};
  for (const auto& text : absl::StrSplit(flags.bucket_kib, ',')) {
    int64_t kib = 0;
    if (!absl::SimpleAtoi(text, &kib)) Check(absl::InvalidArgumentError("--bucket-kib"));
    contestants.emplace_back(absl::StrCat("publish, ", kib, " KiB buckets"),
                             [&bench, kib] { bench.Publish(kib << 10); });
    contestants.emplace_back(absl::StrCat("reduce, ", kib, " KiB buckets"),
                             [&bench, kib] { bench.Reduce(kib << 10); });
  }
  contestants.emplace_back("100 gathers of 8 bytes", [&] {
    for (int i = 0; i < 100; ++i) bench.Gather();
  });
  std::map<std::string, std::vector<double>> times, ratios;
  for (int round = -2; round < flags.rounds; ++round) {
    double raw = 0;
    for (const auto& [name, run] : contestants) {
      const double time = bench.Time(run);
      if (name == "raw gloo") raw = time;
      if (round < 0) continue;
      times[name].push_back(time);
      ratios[name].push_back(time / raw);
    }
  }
  bench.Close();
  if (rank != 0) return;
  std::printf("%-28s %10s %10s %10s %16s\n", "", "median ms", "min ms", "max ms", "ratio to raw");
  for (const auto& [name, run] : contestants) {
    const auto [least, most] = std::minmax_element(times[name].begin(), times[name].end());
    std::printf("%-28s %10.2f %10.2f %10.2f %16.3f\n", name.c_str(), Median(times[name]), *least,
                *most, Median(ratios[name]));
  }
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  if (const auto end = optshard::CommandLineOf(flags).ParseOrEnd(argc, argv)) return *end;
  std::string folder = std::filesystem::temp_directory_path() / "optshard_gloo_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const pid_t child = fork();
  optshard::RunRank(flags, child == 0 ? 1 : 0, folder);
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return status == 0 ? 0 : 1;
}
