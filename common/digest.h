// A digest of a sequence of values that is the same on every machine: XXH3 over a little-endian
// encoding in which texts carry their lengths, so that no two sequences of the same kinds of values
// share an encoding.
#ifndef OPTSHARD_COMMON_DIGEST_H_
#define OPTSHARD_COMMON_DIGEST_H_

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"

struct XXH3_state_s;

namespace optshard {

// Add what is digested, lists with their length first; then ask for the value. Thread-compatible.
class DigestBuilder {
 public:
  // `domain` keeps digests of different things apart, such as "optshard.ParameterSpace".
  explicit DigestBuilder(absl::string_view domain);

  DigestBuilder& AddInt(int64_t value);
  DigestBuilder& AddText(absl::string_view text);
  // The same in parts, one after the other, which have so many bytes in all.
  DigestBuilder& BeginText(int64_t bytes) { return AddInt(bytes); }
  DigestBuilder& AddPart(absl::string_view part);

  uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DIGEST_H_
