// optshard-checkpoint: looks at checkpoints in a directory, checks them and removes old ones.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_text.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/verify.h"
#include "server/shard/inspection/size_text.h"

namespace optshard {
namespace {

constexpr char kProgram[] = "optshard-checkpoint";
constexpr int kUsageError = 2;
constexpr absl::Duration kRedraw = absl::Milliseconds(100);

struct Flags {
  std::string command;
  std::string directory;
  std::string checkpoint;
  PrunePolicy policy;
  bool dry_run = false;
};

void DeclareOptions(Flags& flags, CommandLine& line) {
  line.AddArgument(
      "COMMAND", &flags.command,
      "list: which checkpoints there are, the newest first. show: what is in one. "
      "verify: reads all of it and names what is damaged. prune: removes old ones; the "
      "newest and those with a label always stay",
      /*required=*/true);
  line.AddArgument("DIR", &flags.directory, "the directory that has the checkpoints",
                   /*required=*/true);
  line.AddArgument("CHECKPOINT", &flags.checkpoint,
                   "one of them, such as step-000000001000; without it show takes the newest, and "
                   "verify all that are committed",
                   /*required=*/false);
  line.Group("Prune");
  line.Add("keep-last", &flags.policy.keep_last, "keep so many of the newest; 0: all").AtLeast(0);
  line.Add("keep-every", &flags.policy.keep_every,
           "of the older ones keep those of steps that are multiples of this; 0: none");
  line.Add("dry-run", &flags.dry_run, "only say what would be removed");
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", kProgram, status.ToString().c_str());
  return 1;
}

// A line on a terminal that is drawn again and again, and then taken away.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what) : what_(std::move(what)) {}
  ~ProgressLine() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }

  void Show(int64_t done, int64_t all) {
    const absl::Time now = Clock::Monotonic().Now();
    if (!on_terminal_ || now < next_) return;
    next_ = now + kRedraw;
    drawn_ = true;
    const std::string line = absl::StrCat(what_, ": ", SizeText(done), " of ", SizeText(all), ", ",
                                          all == 0 ? 100 : done * 100 / all, " %");
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
  }

 private:
  const std::string what_;
  const bool on_terminal_ = isatty(STDERR_FILENO) == 1;
  absl::Time next_ = absl::InfinitePast();
  bool drawn_ = false;
};

int List(Directory& root) {
  const auto entries = ListCheckpoints(root);
  if (!entries.ok()) return Fail(entries.status());
  std::fputs(ListText(*entries).c_str(), stdout);
  return 0;
}

// The given one, or all that are committed, the newest first.
absl::StatusOr<std::vector<std::string>> Chosen(Directory& root, const std::string& given) {
  if (!given.empty()) return std::vector<std::string>{given};
  const auto entries = ListCheckpoints(root);
  if (!entries.ok()) return entries.status();
  std::vector<std::string> names;
  for (const CheckpointEntry& entry : *entries) {
    if (entry.state == CheckpointState::kCommitted) names.push_back(entry.name);
  }
  if (names.empty()) {
    return absl::NotFoundError(absl::StrCat(root.path(), " has no committed checkpoint"));
  }
  return names;
}

int Show(Directory& root, const std::string& given) {
  const auto names = Chosen(root, given);
  if (!names.ok()) return Fail(names.status());
  const auto directory = root.OpenDirectory(names->front());
  if (!directory.ok()) return Fail(directory.status());
  const auto manifest = ReadManifest(**directory);
  if (!manifest.ok()) return Fail(manifest.status());
  std::fputs(ShowText(names->front(), *manifest).c_str(), stdout);
  return 0;
}

absl::StatusOr<std::vector<Damage>> VerifyOne(Directory& root, const std::string& name) {
  const auto directory = root.OpenDirectory(name);
  if (!directory.ok()) return directory.status();
  ProgressLine line(name);
  VerifyOptions options;
  options.progress = [&line](int64_t done, int64_t all) { line.Show(done, all); };
  return VerifyCheckpoint(**directory, options);
}

int Verify(Directory& root, const std::string& given) {
  const auto names = Chosen(root, given);
  if (!names.ok()) return Fail(names.status());
  int code = 0;
  for (const std::string& name : *names) {
    const auto damages = VerifyOne(root, name);
    if (!damages.ok()) {
      code = Fail(damages.status());
      continue;
    }
    if (damages->empty()) std::printf("%s: whole\n", name.c_str());
    for (const Damage& damage : *damages) {
      std::printf("%s: %s\n", name.c_str(), damage.what.c_str());
      code = 1;
    }
  }
  return code;
}

int Prune(Directory& root, const Flags& flags) {
  const auto entries = ListCheckpoints(root);
  if (!entries.ok()) return Fail(entries.status());
  for (const PruneDecision& decision : DecidePrune(*entries, flags.policy)) {
    const char* const what = !decision.remove ? "kept" : flags.dry_run ? "would go" : "removed";
    if (decision.remove && !flags.dry_run) {
      const absl::Status removed = RemoveCheckpoint(root, decision.name);
      if (!removed.ok()) return Fail(removed);
    }
    std::printf("%-24s %-8s  %s\n", decision.name.c_str(), what, decision.reason.c_str());
  }
  return 0;
}

int Main(const Flags& flags) {
  PosixFileSystem system;
  const auto root = system.OpenDirectory(flags.directory);
  if (!root.ok()) return Fail(root.status());
  if (flags.command == "list") return List(**root);
  if (flags.command == "show") return Show(**root, flags.checkpoint);
  if (flags.command == "verify") return Verify(**root, flags.checkpoint);
  return Prune(**root, flags);
}

bool IsCommand(const std::string& text) {
  return text == "list" || text == "show" || text == "verify" || text == "prune";
}

int ParseAndRun(int argc, char** argv) {
  Flags flags;
  CommandLine line({kProgram,
                    "Looks at the checkpoints in a directory, checks them and removes old ones. It "
                    "may run while a job saves others there.",
                    {"optshard-checkpoint list /checkpoints",
                     "optshard-checkpoint verify /checkpoints step-000000001000",
                     "optshard-checkpoint prune /checkpoints --keep-last=3 --keep-every=10000"}});
  DeclareOptions(flags, line);
  const auto end = line.ParseOrEnd(argc, argv);
  if (end) return *end;
  if (!IsCommand(flags.command)) {
    std::fprintf(stderr, "%s: COMMAND is %s, expected list, show, verify or prune; see --help\n",
                 kProgram, flags.command.c_str());
    return kUsageError;
  }
  return Main(flags);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) { return optshard::ParseAndRun(argc, argv); }
