#include "server/node/byte_size.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

struct Unit {
  absl::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"KiB", 1024.0},
    {"MiB", 1024.0 * 1024},
    {"GiB", 1024.0 * 1024 * 1024},
    {"TiB", 1024.0 * 1024 * 1024 * 1024},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
};

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  const absl::string_view unit =
      digits == absl::string_view::npos ? "" : absl::StripAsciiWhitespace(text.substr(digits));
  double number = 0;
  if (absl::SimpleAtod(text.substr(0, digits), &number)) {
    for (const Unit& known : kUnits) {
      const double bytes = number * known.bytes;
      if (unit == known.name && bytes >= 1 && bytes < 9e18) return static_cast<int64_t>(bytes);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" is no size: expected a number and a unit, such as 8GiB, 512MiB "
                   "or 1.5TB"));
}

}  // namespace optshard
