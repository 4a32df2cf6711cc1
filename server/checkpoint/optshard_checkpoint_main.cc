// optshard-checkpoint: looks at checkpoints in a directory, checks them, makes files of other
// programs of them and them of such files, and removes old ones.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/checkpoint_removal.h"
#include "server/checkpoint/checkpoint_text.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/posix_file_system.h"
#include "server/checkpoint/state_file/checkpoint_export.h"
#include "server/checkpoint/state_file/checkpoint_import.h"
#include "server/checkpoint/state_file/model_source.h"
#include "server/checkpoint/state_file/state_file.h"
#include "server/checkpoint/verify.h"
#include "server/shard/inspection/size_text.h"

namespace optshard {
namespace {

constexpr char kProgram[] = "optshard-checkpoint";
constexpr char kImportExample[] =
    "optshard-checkpoint import /checkpoints --from=optimizer.pt --model=model.pt --rules=adamw";
constexpr int kUsageError = 2;
constexpr absl::Duration kRedraw = absl::Milliseconds(100);

struct Flags {
  std::string command;
  std::string directory;
  std::string checkpoint;
  PrunePolicy policy;
  bool dry_run = false;
  std::string to;
  std::string model_to;
  int64_t shard_bytes = kDefaultShardBytes;
  std::string from;
  std::string from_key;
  std::string model;
  std::string rules;
};

void DeclareOptions(Flags& flags, CommandLine& line) {
  line.AddArgument(
      "COMMAND", &flags.command,
      "list: which checkpoints there are, the newest first. show: what is in one. "
      "verify: reads all of it and names what is damaged. export: writes one as files of "
      "other programs. import: makes one of such files. prune: removes old ones; the newest "
      "and those with a label always stay",
      /*required=*/true);
  line.AddArgument("DIR", &flags.directory, "the directory that has the checkpoints",
                   /*required=*/true);
  line.AddArgument("CHECKPOINT", &flags.checkpoint,
                   "one of them, such as step-000000001000; without it show and export take the "
                   "newest, and verify all",
                   /*required=*/false);
  line.Group("Export");
  line.Add(
      "to", &flags.to,
      "write the optimizer's state as a state dict of PyTorch, into a file that ends in .pt or "
      ".safetensors");
  line.Add("model-to", &flags.model_to,
           "write the parameters as Hugging Face lays a model out, into a directory that there is");
  line.Add("shard-bytes", &flags.shard_bytes, "begin another file of parameters beyond this size")
      .AtLeast(1);
  line.Group("Import");
  line.Add(
      "from", &flags.from,
      "the file, .pt or .safetensors, that has the optimizer's state dict; nothing in it is run");
  line.Add("from-key", &flags.from_key,
           "the key under which the state dict is there, if it is within another dict");
  line.Add("model", &flags.model,
           "what has the parameters by name: a file, .pt or .safetensors, or where a model of "
           "Hugging Face is several files, its .index.json or its directory");
  line.Add("rules", &flags.rules,
           "the update rule of all param groups, such as adamw, or one for each, with commas");
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
    const int64_t percent = all < 100 ? 100 : std::min<int64_t>(100, done / (all / 100));
    const std::string line =
        absl::StrCat(what_, ": ", SizeText(done), " of ", SizeText(all), ", ", percent, " %");
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
  const auto parsed = ParseCheckpointName(name);
  if (parsed) options.step = parsed->step;
  options.progress = [&line](int64_t done, int64_t all) { line.Show(done, all); };
  return VerifyCheckpoint(**directory, options);
}

// Those that are there, and cannot be committed ones, are as bad as damage within one.
int SayRefused(Directory& root) {
  const auto entries = ListCheckpoints(root);
  if (!entries.ok()) return Fail(entries.status());
  int code = 0;
  for (const CheckpointEntry& entry : *entries) {
    if (entry.problem.ok()) continue;
    std::printf("%s: %s\n", entry.name.c_str(), std::string(entry.problem.message()).c_str());
    code = 1;
  }
  return code;
}

int Verify(Directory& root, const std::string& given) {
  int code = given.empty() ? SayRefused(root) : 0;
  const auto names = Chosen(root, given);
  if (!names.ok()) return Fail(names.status());
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

int Export(FileSystem& system, Directory& root, const Flags& flags) {
  const auto names = Chosen(root, flags.checkpoint);
  if (!names.ok()) return Fail(names.status());
  auto directory = root.OpenDirectory(names->front());
  if (!directory.ok()) return Fail(directory.status());
  const auto checkpoint = CheckpointReader::Open(*std::move(directory));
  if (!checkpoint.ok()) return Fail(checkpoint.status());
  if (!flags.to.empty()) {
    ProgressLine line(flags.to);
    const absl::Status exported =
        ExportState(**checkpoint, system, flags.to,
                    [&line](int64_t done, int64_t all) { line.Show(done, all); });
    if (!exported.ok()) return Fail(exported);
  }
  if (!flags.model_to.empty()) {
    const auto to = system.OpenDirectory(flags.model_to);
    if (!to.ok()) return Fail(to.status());
    ProgressLine line(flags.model_to);
    const absl::Status exported =
        ExportModel(**checkpoint, **to, flags.shard_bytes,
                    [&line](int64_t done, int64_t all) { line.Show(done, all); });
    if (!exported.ok()) return Fail(exported);
  }
  if (!flags.to.empty()) std::printf("%s: %s\n", names->front().c_str(), flags.to.c_str());
  if (!flags.model_to.empty()) {
    std::printf("%s: %s\n", names->front().c_str(), flags.model_to.c_str());
  }
  return 0;
}

absl::StatusOr<std::string> ImportFiles(FileSystem& system, Directory& root, const Flags& flags) {
  const auto state = StateFile::Open(system, ResolvedPath(flags.from));
  if (!state.ok()) return state.status();
  const auto model = ModelSource::Open(system, ResolvedPath(flags.model));
  if (!model.ok()) return model.status();
  CheckpointImport import;
  import.state = state->get();
  import.key = flags.from_key;
  import.model = model->get();
  import.rules = absl::StrSplit(flags.rules, ',');
  import.saved_at = absl::Now();
  ProgressLine line(flags.from);
  return ImportCheckpoint(root, import,
                          [&line](int64_t done, int64_t all) { line.Show(done, all); });
}

int Import(FileSystem& system, Directory& root, const Flags& flags) {
  const auto name = ImportFiles(system, root, flags);
  if (!name.ok()) return Fail(name.status());
  std::printf("%s: imported\n", name->c_str());
  return 0;
}

int Prune(Directory& root, const Flags& flags) {
  const auto entries = ListCheckpoints(root);
  if (!entries.ok()) return Fail(entries.status());
  const std::vector<PruneDecision> decisions = DecidePrune(*entries, flags.policy);
  std::vector<absl::Status> failed;
  for (size_t i = 0; i < decisions.size(); ++i) {
    const PruneDecision& decision = decisions[i];
    const char* what = !decision.remove ? "kept" : flags.dry_run ? "would go" : "removed";
    std::string reason = decision.reason;
    if (decision.remove && !flags.dry_run) {
      const auto removed = RemoveCheckpoint(root, (*entries)[i]);
      if (!removed.ok()) {
        what = "failed";
        failed.push_back(removed.status());
      } else if (*removed == Removal::kKept) {
        what = "kept";
        reason = "committed meanwhile";
      }
    }
    std::printf("%-24s %-8s  %s\n", decision.name.c_str(), what, reason.c_str());
  }
  for (const absl::Status& status : failed) Fail(status);
  return failed.empty() ? 0 : 1;
}

int Main(const Flags& flags) {
  PosixFileSystem system;
  const auto root = system.OpenDirectory(flags.directory);
  if (!root.ok()) return Fail(root.status());
  if (flags.command == "list") return List(**root);
  if (flags.command == "show") return Show(**root, flags.checkpoint);
  if (flags.command == "verify") return Verify(**root, flags.checkpoint);
  if (flags.command == "export") return Export(system, **root, flags);
  if (flags.command == "import") return Import(system, **root, flags);
  return Prune(**root, flags);
}

bool IsCommand(const std::string& text) {
  return text == "list" || text == "show" || text == "verify" || text == "export" ||
         text == "import" || text == "prune";
}

int ParseAndRun(int argc, char** argv) {
  Flags flags;
  CommandLine line({kProgram,
                    "Looks at the checkpoints in a directory, checks them, makes files of other "
                    "programs of them and them of such files, and removes old ones. It may run "
                    "while a job saves others there.",
                    {"optshard-checkpoint list /checkpoints",
                     "optshard-checkpoint verify /checkpoints step-000000001000",
                     "optshard-checkpoint export /checkpoints --to=optimizer.pt --model-to=model",
                     kImportExample,
                     "optshard-checkpoint prune /checkpoints --keep-last=3 --keep-every=10000"}});
  DeclareOptions(flags, line);
  const auto end = line.ParseOrEnd(argc, argv);
  if (end) return *end;
  if (!IsCommand(flags.command)) {
    std::fprintf(
        stderr,
        "%s: COMMAND is %s, expected list, show, verify, export, import or prune; see --help\n",
        kProgram, flags.command.c_str());
    return kUsageError;
  }
  if (flags.command == "export" && flags.to.empty() && flags.model_to.empty()) {
    std::fprintf(stderr, "%s: export needs --to=FILE or --model-to=DIR, or both; see --help\n",
                 kProgram);
    return kUsageError;
  }
  if (flags.command == "import" &&
      (flags.from.empty() || flags.model.empty() || flags.rules.empty())) {
    std::fprintf(stderr,
                 "%s: import needs --from=FILE, --model=FILE and --rules=RULE; see --help\n",
                 kProgram);
    return kUsageError;
  }
  if (!flags.checkpoint.empty() && (flags.command == "list" || flags.command == "prune")) {
    std::fprintf(stderr,
                 "%s: %s takes no CHECKPOINT, and there is %s, expected a DIR alone; see --help\n",
                 kProgram, flags.command.c_str(), flags.checkpoint.c_str());
    return kUsageError;
  }
  return Main(flags);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) { return optshard::ParseAndRun(argc, argv); }
