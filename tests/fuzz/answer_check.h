// Which answers tell of a defect, whatever the request was.
#ifndef OPTSHARD_TESTS_FUZZ_ANSWER_CHECK_H_
#define OPTSHARD_TESTS_FUZZ_ANSWER_CHECK_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/fatal.h"

namespace optshard::testing {

// The program ends where what is to be fuzzed cannot be made.
inline void Require(const absl::Status& status) {
  if (!status.ok()) Fatal("the job to be fuzzed cannot be made: %s", status.ToString());
}

// "" where the status is one that a request may bring about. `may_wait`: it may also have waited
// until its deadline.
inline std::string CheckStatus(const grpc::Status& status, bool may_wait = false) {
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      if (may_wait) return "";
      break;
    // The service threw, or its answer cannot be parsed.
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      break;
    default:
      return "";
  }
  return absl::StrCat("status ", status.error_code(), ": ", status.error_message());
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_FUZZ_ANSWER_CHECK_H_
