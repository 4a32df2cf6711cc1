#include "examples/process_memory.h"

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/status_error.h"

namespace optshard {
namespace {

// The lines of /proc/self/status look like "VmRSS:     1234 kB".
int64_t StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string name;
  int64_t kibibytes = 0;
  std::string rest;
  while (status >> name) {
    if (name == field + ":" && status >> kibibytes) return kibibytes * 1024;
    std::getline(status, rest);
  }
  throw StatusError(absl::NotFoundError(absl::StrCat("/proc/self/status has no ", field)));
}

}  // namespace

int64_t ResidentBytes() { return StatusBytes("VmRSS"); }
int64_t PeakResidentBytes() { return StatusBytes("VmHWM"); }

}  // namespace optshard
