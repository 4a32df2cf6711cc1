// Limits of checkpoints: bytes that all ranks together write to files and sync, read from files, or
// copy in memory. Nothing is checked, and nothing else done.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/huge_page_array.h"
#include "benchmarks/round_protocol.h"
#include "common/cli/command_line.h"

namespace optshard {
namespace {

struct Flags {
  int rank = 0;
  int world_size = 1;
  int64_t bytes = 960'480'000;
  std::string how = "write";
  std::string directory;
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-bench-bytes-moved",
                    "One rank's share of bytes that are written, read or copied. run_bench.py "
                    "drives it.",
                    {"optshard-bench-bytes-moved --how=copy"}});
  line.Add("rank", &flags.rank, "this process's rank").AtLeast(0);
  line.Add("world-size", &flags.world_size, "number of ranks").AtLeast(1);
  line.Add("bytes", &flags.bytes, "of all ranks together").AtLeast(1);
  line.Add("how", &flags.how, "to a file that is synced, from a file, or from memory to memory")
      .OneOf({"write", "read", "copy"});
  line.Add("directory", &flags.directory, "of the files, which is there").Value("PATH");
  return line;
}

constexpr int64_t kAtOnce = 4 << 20;

int64_t Checked(int64_t result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

class File {
 public:
  File(const std::string& path, int flags)
      : descriptor_(static_cast<int>(Checked(open(path.c_str(), flags, 0600), "open"))) {}
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

// This rank's bytes, and room for as many.
class Share {
 public:
  explicit Share(const Flags& flags)
      : bytes_(flags.bytes / flags.world_size),
        path_(absl::StrCat(flags.directory, "/bytes-", flags.rank)),
        from_(MakeHugePageArray(Elements(), 1)) {
    if (flags.how == "copy") to_ = MakeHugePageArray(Elements(), 0);
  }

  void Write() const {
    const File file(path_, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
    for (int64_t done = 0; done < bytes_;) {
      done += Checked(write(file.descriptor(), data() + done, std::min(kAtOnce, bytes_ - done)),
                      "write");
    }
    Checked(fsync(file.descriptor()), "fsync");
  }

  void Read() const {
    const File file(path_, O_RDONLY | O_CLOEXEC);
    for (int64_t done = 0; done < bytes_;) {
      const int64_t count =
          Checked(read(file.descriptor(), data() + done, std::min(kAtOnce, bytes_ - done)), "read");
      if (count == 0) throw std::runtime_error(path_ + " is shorter than it was written");
      done += count;
    }
  }

  void Copy() const { std::memcpy(to_.get(), from_.get(), bytes_); }

  void Remove() const { Checked(unlink(path_.c_str()), "unlink"); }

 private:
  int64_t Elements() const { return bytes_ / static_cast<int64_t>(sizeof(float)) + 1; }
  char* data() const { return reinterpret_cast<char*>(from_.get()); }

  const int64_t bytes_;
  const std::string path_;
  const HugePageArray from_;
  HugePageArray to_;
};

Contestant SetUp(const Flags& flags) {
  const auto share = std::make_shared<Share>(flags);
  const auto check = [] { return std::map<std::string, double>(); };
  if (flags.how == "copy") return {[share] { share->Copy(); }, check};
  if (flags.how == "write") {
    return {[share] { share->Write(); }, check, [share] { share->Remove(); }};
  }
  share->Write();
  return {[share] { share->Read(); }, check};
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  return optshard::RunContestant(argc, argv, optshard::CommandLineOf, optshard::SetUp);
}
