// A service that is sent requests which no well-behaved client sends.
#ifndef OPTSHARD_TESTS_FUZZ_FUZZ_TARGET_H_
#define OPTSHARD_TESTS_FUZZ_FUZZ_TARGET_H_

#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace optshard::testing {

struct FuzzRequest {
  std::string method;
  std::shared_ptr<google::protobuf::Message> message;
};

// Thread-compatible. Ends what it has started with its destructor.
class FuzzTarget {
 public:
  virtual ~FuzzTarget() = default;

  // Requests as a well-behaved client sends them, of every method. Later ones are made from them.
  virtual std::vector<FuzzRequest> Seeds() = 0;

  // Sends the request. "" where the answer is one that a service may give, an error included; else
  // what is wrong with it.
  virtual std::string Send(const FuzzRequest& request) = 0;
};

std::unique_ptr<FuzzTarget> MakeCoordinatorTarget();
std::unique_ptr<FuzzTarget> MakeShardOwnerTarget();

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_FUZZ_FUZZ_TARGET_H_
