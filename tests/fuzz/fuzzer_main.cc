#include "tests/fuzz/fuzzer_main.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "tests/testing/in_child.h"

namespace optshard::testing {
namespace {

constexpr size_t kReportBytes = 1 << 20;

}  // namespace

FuzzReport::FuzzReport()
    : text_(static_cast<char*>(
          mmap(nullptr, kReportBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  if (text_ == MAP_FAILED) std::abort();
}

void FuzzReport::Set(const std::string& text) {
  const size_t bytes = std::min(text.size(), kReportBytes - 1);
  std::memcpy(text_, text.data(), bytes);
  text_[bytes] = '\0';
}

int FuzzerMain(int argc, char** argv,
               const std::function<int(uint64_t, absl::Duration, FuzzReport&)>& fuzz) {
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
  FuzzReport report;
  // In a child, so that somebody is there to show what ended it.
  Child child([&] {
    SetLogLevel("off").IgnoreError();
    const int code = fuzz(seed, absl::Seconds(seconds), report);
    std::fflush(nullptr);
    return code;
  });
  const int code = child.Wait();
  if (code == 0) return 0;
  std::fprintf(stderr, "ended with %d at --seed=%llu, %s\n", code,
               static_cast<unsigned long long>(seed), report.text());
  return 1;
}

}  // namespace optshard::testing
