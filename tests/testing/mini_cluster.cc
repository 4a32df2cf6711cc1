#include "tests/testing/mini_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace optshard::testing {
namespace {

namespace fs = std::filesystem;

// Of a target that the test has as data, by its path in the workspace.
std::string Runfile(const std::string& path) { return fs::absolute(path).string(); }

constexpr absl::Duration kCoordinatorStart = absl::Seconds(20);

absl::StatusOr<std::string> WaitForPort(const fs::path& port_file) {
  const absl::Time deadline = absl::Now() + kCoordinatorStart;
  std::string port;
  while (absl::Now() < deadline) {
    if (std::ifstream(port_file) >> port) return port;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return absl::DeadlineExceededError("the coordinator has not written its port");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TestTrainer>> TestTrainer::Start(
    std::vector<std::string> arguments) {
  auto trainer = std::unique_ptr<TestTrainer>(new TestTrainer());
  int output[2];
  int link[2];
  if (pipe2(output, O_CLOEXEC) != 0 ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) != 0) {
    return absl::InternalError("no pipe for a trainer");
  }
  trainer->output_descriptor_ = output[0];
  trainer->link_ = link[0];
  ChildProcess::Options options;
  options.command = {Runfile("tests/testing/test-trainer")};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.link = link[1];
  options.output = output[1];
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(options);
  close(output[1]);
  close(link[1]);
  if (!process.ok()) return process.status();
  trainer->process_ = *std::move(process);
  return trainer;
}

TestTrainer::~TestTrainer() {
  process_.reset();
  close(output_descriptor_);
  close(link_);
}

bool TestTrainer::ReadMore(absl::Time deadline) {
  pollfd readable = {output_descriptor_, POLLIN, 0};
  const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
  if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) return true;
  char buffer[4096];
  const ssize_t count = read(output_descriptor_, buffer, sizeof buffer);
  if (count > 0) output_.append(buffer, count);
  return count > 0;
}

absl::StatusOr<nlohmann::json> TestTrainer::WaitFor(const std::string& event, absl::Time deadline) {
  return WaitForAny({event}, deadline);
}

absl::StatusOr<nlohmann::json> TestTrainer::WaitForAny(const std::vector<std::string>& events,
                                                       absl::Time deadline) {
  const std::string names = absl::StrJoin(events, " or ");
  while (true) {
    for (size_t end; (end = output_.find('\n', consumed_)) != std::string::npos;) {
      const nlohmann::json line = nlohmann::json::parse(output_.substr(consumed_, end - consumed_),
                                                        nullptr, /*allow_exceptions=*/false);
      consumed_ = end + 1;
      if (line.is_object() && absl::c_linear_search(events, line.value("event", ""))) return line;
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("no event \"", names, "\" so far; it said:\n", output_));
    }
    if (!ReadMore(deadline)) {
      return absl::UnavailableError(
          absl::StrCat("it ended without the event \"", names, "\"; it said:\n", output_));
    }
  }
}

void TestTrainer::Resume() {
  const char word = 0;
  send(link_, &word, sizeof word, MSG_NOSIGNAL);
}

void TestTrainer::Release() { shutdown(link_, SHUT_WR); }

absl::StatusOr<std::unique_ptr<MiniCluster>> MiniCluster::Start(const Options& options) {
  auto cluster = std::unique_ptr<MiniCluster>(new MiniCluster());
  cluster->options_ = options;
  // Port 1 belongs to a service that nobody has run for decades.
  cluster->address_ = "127.0.0.1:1";
  if (!options.coordinator) return cluster;
  // Short, since a socket's path has to be.
  cluster->directory_ = "/tmp/cluster-XXXXXX";
  if (mkdtemp(cluster->directory_.data()) == nullptr) {
    return absl::InternalError(absl::StrCat(cluster->directory_, " cannot be made"));
  }
  const fs::path port_file = fs::path(cluster->directory_) / "port";
  ChildProcess::Options child;
  child.command = {Runfile("server/coordinator/optshard-coordinator"), "--listen=127.0.0.1:0",
                   "--job=test", absl::StrCat("--world_size=", options.world_size),
                   absl::StrCat("--port_file=", port_file.string())};
  child.command.insert(child.command.end(), options.coordinator_arguments.begin(),
                       options.coordinator_arguments.end());
  child.output = options.coordinator_output;
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(child);
  if (!process.ok()) return process.status();
  cluster->coordinator_ = *std::move(process);
  absl::StatusOr<std::string> port = WaitForPort(port_file);
  if (!port.ok()) return port.status();
  cluster->address_ = absl::StrCat("127.0.0.1:", *port);
  return cluster;
}

MiniCluster::~MiniCluster() {
  trainers_.clear();
  servers_.clear();
  std::error_code ignored;
  if (!directory_.empty()) fs::remove_all(directory_, ignored);
}

absl::StatusOr<std::string> MiniCluster::AddServer(const std::string& ranks,
                                                   const std::vector<std::string>& arguments) {
  const std::string attach = absl::StrCat("unix:", directory_, "/server", servers_.size());
  absl::Status added = AddServerAt(attach, ranks, arguments);
  if (!added.ok()) return added;
  return attach;
}

absl::Status MiniCluster::AddServerAt(const std::string& attach, const std::string& ranks,
                                      const std::vector<std::string>& arguments) {
  const absl::string_view socket = absl::StripPrefix(attach, "unix:");
  ChildProcess::Options child;
  child.command = {Runfile("server/node/optshard-server"), "--job=test",
                   absl::StrCat("--node_ranks=", ranks),   absl::StrCat("--coordinator=", address_),
                   absl::StrCat("--socket=", socket),      "--log_level=warning"};
  child.command.insert(child.command.end(), arguments.begin(), arguments.end());
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(child);
  if (!process.ok()) return process.status();
  servers_.push_back(*std::move(process));
  return absl::OkStatus();
}

absl::StatusOr<pid_t> MiniCluster::ServerProcess(int index) const {
  const pid_t keeper = servers_[index]->pid();
  pid_t child = 0;
  if (std::ifstream(absl::StrCat("/proc/", keeper, "/task/", keeper, "/children")) >> child) {
    return child;
  }
  return absl::NotFoundError(absl::StrCat("keeper ", keeper, " has no child"));
}

absl::Status MiniCluster::AddTrainer(int rank, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {absl::StrCat("--coordinator=", address_),
                                  absl::StrCat("--rank=", rank),
                                  absl::StrCat("--world_size=", options_.world_size)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  absl::StatusOr<std::unique_ptr<TestTrainer>> trainer = TestTrainer::Start(std::move(all));
  if (!trainer.ok()) return trainer.status();
  trainers_.push_back(*std::move(trainer));
  return absl::OkStatus();
}

absl::Status MiniCluster::AddTrainers(const std::vector<std::string>& arguments) {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (absl::Status status = AddTrainer(rank, arguments); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace optshard::testing
