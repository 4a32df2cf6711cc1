#include "benchmarks/file_rendezvous.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/clock.h"

namespace optshard {
namespace {

bool Read(const std::string& path, std::string* value) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  std::ostringstream content;
  content << file.rdbuf();
  *value = content.str();
  return true;
}

}  // namespace

std::string FileRendezvous::PathOf(absl::string_view key) const {
  return absl::StrCat(directory_, "/", absl::StrReplaceAll(key, {{"/", "_"}}));
}

absl::Status FileRendezvous::Put(absl::string_view key, absl::string_view value) {
  const std::string path = PathOf(key);
  const std::string partial = absl::StrCat(path, ".", getpid(), ".partial");
  std::ofstream file(partial, std::ios::binary);
  file << value;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", partial));
  // link refuses an existing name, and the value appears as a whole.
  const bool is_new = link(partial.c_str(), path.c_str()) == 0;
  std::remove(partial.c_str());
  std::string present;
  if (is_new || (Read(path, &present) && present == value)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("the key \"", key, "\" has another value"));
}

absl::StatusOr<std::string> FileRendezvous::Get(absl::string_view key, absl::Time deadline) {
  const std::string path = PathOf(key);
  std::string value;
  while (!Read(path, &value)) {
    if (Clock::Monotonic().Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("nobody gave the key \"", key, "\""));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return value;
}

}  // namespace optshard
