// JSON that came from a file of anybody's: parsed without anything that readers disagree about, and
// read field by field.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STRICT_JSON_H_
#define OPTSHARD_SERVER_CHECKPOINT_STRICT_JSON_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace optshard {

constexpr int kMaxJsonDepth = 16;
// About 200 bytes of memory each in the worst case.
constexpr int64_t kMaxJsonValues = int64_t{1} << 23;

// INVALID_ARGUMENT, with the place in bytes, for what is not JSON, a name that is twice in one
// object, more than one value, a NUL byte, a byte order mark, and beyond the limits above.
// Thread-safe.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text);

// A text as JSON has it, with quotation marks. INVALID_ARGUMENT where it is not UTF-8.
absl::StatusOr<std::string> JsonQuoted(absl::string_view text);

// Whether a text has control characters of ASCII or Unicode, which terminals act upon.
bool HasControlCharacters(absl::string_view text);

// The fields of one object. A field that is not as it must be sets `error`, INVALID_ARGUMENT with
// the field's place such as "owners[1].tensors[3].bytes", and reads as 0 or empty; the first error
// stays. Thread-compatible; keeps references to all that it is given.
class JsonFields {
 public:
  // Sets the error where the value is not an object.
  JsonFields(const nlohmann::json& value, std::string where, absl::Status& error);

  bool Has(absl::string_view name) const;
  int64_t Int(absl::string_view name, int64_t least, int64_t most) const;
  bool Flag(absl::string_view name) const;
  // Without control characters.
  std::string Text(absl::string_view name, size_t most_bytes) const;
  const nlohmann::json& Array(absl::string_view name, size_t most) const;
  const nlohmann::json& Object(absl::string_view name) const;
  // Any value, null where there is none.
  const nlohmann::json& Value(absl::string_view name) const;

  // "owners[1].tensors"
  std::string Place(absl::string_view name) const;
  std::string Place(absl::string_view name, size_t index) const;  // of an array's element
  // Sets the error, for what only the caller can see.
  void Refuse(absl::string_view name, absl::string_view why) const;

  bool ok() const { return error_.ok(); }

 private:
  const nlohmann::json& value_;
  const std::string where_;
  absl::Status& error_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STRICT_JSON_H_
